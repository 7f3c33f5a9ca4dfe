"""`pip check` by the image's own pip, less what the matrix overrides and wrong tags of packages without modules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from smoke import elf
from smoke.program import Details, Failed, Skipped, Spec

# pip 26.3, pip/_internal/commands/check.py
_LACKS = re.compile(r"\S+ \S+ requires (\S+), which is not installed\.")
_UNSUPPORTED = re.compile(r"(\S+) \S+ is not supported on this platform")
_DIFFERS = re.compile(r"\S+ \S+ has requirement .*, but you have (\S+) (\S+)\.")


def check(spec: Spec) -> Details:
    if importlib.util.find_spec("pip") is None:
        raise Skipped("the image holds no pip")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = (result.stdout + result.stderr).strip().splitlines()
    mistagged = [line for line in lines if is_mistagged(line)]
    faults = [line for line in lines if line not in mistagged and not overridden(line, spec.overrides)]
    if result.returncode != 0 and (faults or not lines):
        raise Failed("; ".join(faults), {"output": lines})
    note = {"note": f"no module compiled for a Python in: {'; '.join(mistagged)}"} if mistagged else {}
    return {"output": lines, **note}


def is_mistagged(line: str) -> bool:
    """Return whether a line of `pip check` rejects the tag of a distribution without a module compiled for a Python.

    transformer-engine-cu13 up to 2.16 is py3-none by its file name and cp310 in its WHEEL file, which pip reads.
    """
    if (found := _UNSUPPORTED.fullmatch(line)) is None:
        return False
    files = importlib.metadata.files(found[1]) or ()
    libraries = [Path(str(file.locate())) for file in files if file.suffix == ".so"]
    modules = any(name.startswith("PyInit_") for path in libraries for name in elf.dynamic(path).defined)
    return {_machine(path) for path in libraries} == {_machine(Path(sys.executable))} and not modules


def _machine(path: Path) -> int:
    with path.open("rb") as file:
        return elf.machine(file.read(elf.HEADER.size))[0]


def overridden(line: str, overrides: Mapping[str, str | None]) -> bool:
    """Return whether a line of `pip check` reports what `overrides` declares (normalised name -> PEP 440 specifier).

    A distribution may be missing where its specifier is None, and differ where the installed version satisfies it.
    """
    if found := _LACKS.fullmatch(line):
        return overrides.get(_normalised(found[1]), "") is None
    if not (found := _DIFFERS.fullmatch(line)):
        return False
    specifier = overrides.get(_normalised(found[1]))
    return specifier is not None and _satisfies(found[2], specifier)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _satisfies(version: str, specifier: str) -> bool:
    specifiers = importlib.import_module("pip._vendor.packaging.specifiers")  # an image may lack packaging itself
    return bool(specifiers.SpecifierSet(specifier).contains(version, prereleases=True))
