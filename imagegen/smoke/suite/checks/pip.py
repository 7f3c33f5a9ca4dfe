"""`pip check` by the image's own pip. What the matrix overrides is no fault."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Collection

from suite.program import Details, Failed, Skipped, Spec

# pip 26.3, pip/_internal/commands/check.py
_LACKS = re.compile(r"\S+ \S+ requires (\S+), which is not installed\.")
_DIFFERS = re.compile(r"\S+ \S+ has requirement .*, but you have (\S+) \S+\.")


def check(spec: Spec) -> Details:
    if importlib.util.find_spec("pip") is None:
        raise Skipped("the image holds no pip")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = (result.stdout + result.stderr).strip().splitlines()
    faults = [line for line in lines if not overridden(line, spec.overrides)]
    if result.returncode != 0 and (faults or not lines):
        raise Failed("; ".join(faults), {"output": lines})
    return {"output": lines}


def overridden(line: str, overrides: Collection[str]) -> bool:
    """Return whether a line of `pip check` is about one of the distributions in `overrides` (normalised names)."""
    found = _LACKS.fullmatch(line) or _DIFFERS.fullmatch(line)
    return found is not None and re.sub(r"[-_.]+", "-", found[1]).lower() in overrides
