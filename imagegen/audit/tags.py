"""Check the promises of wheel tags, and whether the tags fit the environment. Source: PEP 425, PEP 600, PEP 656."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from math import prod

from packaging.tags import InvalidTag, Tag, compatible_tags, cpython_tags, parse_tag

from imagegen.audit.catalogue import is_module
from imagegen.audit.model import File, Finding, Package, Severity, Subject

MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine -> how platform tags, and the loader's $PLATFORM, call it
# In the name of a module, as import reads it: .cpython-311-x86_64-linux-gnu.so. Source: PEP 3149, PEP 425's names.
_BUILT_FOR = re.compile(r"\.(cpython|pypy|graalpy)-?(\d)(\d++)\w{0,50}-[^/]{0,200}\.so$")
_MOST_TAGS = 1000  # of one wheel; the longest names of the field stand for some dozens
_INTERPRETER = re.compile(r"cp3([0-9]{1,2})")


def check(subject: Subject) -> Iterator[Finding]:
    """Yield findings about packages that are for another Python or platform than the subject's."""
    interpreter = subject.system.interpreter if subject.system else None
    machine = MACHINES.get(interpreter.elf.machine) if interpreter and interpreter.elf else None
    for package in subject.packages:
        wheel_tags = _parsed(package.tags)
        if (
            subject.python
            and wheel_tags
            and not any((tag.interpreter, tag.abi) in _fitting(subject.python) for tag in wheel_tags)
        ):
            evidence = f"is for {_shown(package.tags)}, and the environment has Python {subject.python}"
            severity = Severity.ERROR
            if not any(_may_be_module(path, file) for path, file in package.files.items()):
                severity, evidence = Severity.WARNING, f"{evidence}; it has no module that is compiled for a Python"
            yield Finding(severity, "wrong-python", str(package), None, evidence)
        elif subject.python and (modules := _modules_for_others(package, subject.python)):
            pythons = ", ".join(sorted({version for versions in modules.values() for version in versions}, key=_number))
            evidence = f"its modules are for Python {pythons}, and the environment has Python {subject.python}"
            path, *further = modules
            loadable = any(_loads(module_path, subject.python) for module_path in package.files)
            severity = Severity.INFO if loadable else Severity.WARNING
            yield Finding(severity, "wrong-python", str(package), path, evidence, tuple(further[:12]))
        glibc = bool(subject.system and "libc.so.6" in subject.system.libraries)
        if machine and wheel_tags and not any(_on(tag.platform, machine, glibc=glibc) for tag in wheel_tags):
            libc = " with glibc" if glibc else ""
            evidence = f"is for {_shown(package.tags)}, and the environment is Linux on {machine}{libc}"
            severity = Severity.ERROR
            machines = {MACHINES.get(file.elf.machine) for file in package.binaries.values() if file.elf}
            if machines == {machine} and not any(tag.platform.startswith("musllinux") for tag in wheel_tags):
                severity, evidence = Severity.WARNING, f"{evidence}; its {machine} files say that the tag is wrong"
            yield Finding(severity, "wrong-platform", str(package), None, evidence)


def for_another_python(path: str, python: str | None) -> bool:
    """Return whether a file is a module that CPython "3.11" does not look for: x.cpython-312-x86_64-linux-gnu.so.

    If the Python is not known (None), only modules for PyPy or GraalPy count.
    """
    built = _BUILT_FOR.search(path)
    return built is not None and (built[1] != "cpython" or python not in (None, f"{built[2]}.{built[3]}"))


def python_of_module(path: str) -> str | None:
    """Return the CPython that a module's file name names, "3.11"; None if it names none."""
    built = _BUILT_FOR.search(path)
    return f"{built[2]}.{built[3]}" if built and built[1] == "cpython" else None


def one_python(tags: Iterable[str]) -> str | None:
    """Return the one CPython that tags are for: "3.11" of cp311-cp311-linux_x86_64; None where several take them."""
    pythons = {
        f"3.{match[1]}"
        for tag in _parsed(tags)
        if (match := _INTERPRETER.fullmatch(tag.interpreter)) and tag.abi != "abi3"
    }
    return pythons.pop() if len(pythons) == 1 else None


def promise_modules(tags: Iterable[str]) -> bool:
    """Return whether all tags name an ABI: such a wheel has modules that are compiled against Python."""
    parsed = _parsed(tags)
    return bool(parsed) and all(tag.abi != "none" for tag in parsed)


def promise_none(tags: Iterable[str]) -> bool:
    """Return whether all tags mean that the wheel is the same everywhere."""
    parsed = _parsed(tags)
    return bool(parsed) and all(tag.platform == "any" for tag in parsed)


def _modules_for_others(package: Package, python: str) -> dict[str, set[str]]:
    """Return each module's first path and its Pythons, if no module of the package is for `python`."""
    modules: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for path in package.files:
        if ".cpython" in path and (version := python_of_module(path)):
            module = path[: path.rindex(".cpython")]
            modules.setdefault(module, set()).add(version)
            first.setdefault(module, path)
    if any(python in versions for versions in modules.values()):
        return {}
    return {first[module]: versions for module, versions in sorted(modules.items())}


def _may_be_module(path: str, file: File) -> bool:
    """Return whether Python may import a file: by its name, by its init function, or if it was not read."""
    is_module_name = path.endswith(".abi3.so") or _BUILT_FOR.search(path) is not None
    return path.endswith(".so") and (is_module_name or file.elf is None or is_module(file.elf.exported))


def _loads(path: str, python: str) -> bool:
    return path.endswith(".so") and not for_another_python(path, python)


@cache
def _fitting(python: str) -> frozenset[tuple[str, str]]:
    """Return the interpreter and ABI tags that a CPython "3.11" takes, whatever the platform."""
    version = _number(python)
    interpreter = f"cp{''.join(map(str, version))}"
    tags = [*cpython_tags(version, [interpreter], ["any"]), *compatible_tags(version, interpreter, ["any"])]
    return frozenset((tag.interpreter, tag.abi) for tag in tags)


def _parsed(tags: Iterable[str]) -> list[Tag]:
    """Parse tags; skip malformed ones, and those that stand for more tags than any wheel has (PEP 425, compressed)."""
    parsed: set[Tag] = set()
    for text in tags:
        if len(parsed) + prod(part.count(".") + 1 for part in text.split("-")) > _MOST_TAGS:
            continue
        with suppress(ValueError, InvalidTag):
            parsed |= parse_tag(text)
    return sorted(parsed, key=str)


def _on(platform: str, machine: str, *, glibc: bool) -> bool:
    if glibc and platform.startswith("musllinux"):
        return False
    return platform == "any" or ("linux" in platform and platform.endswith(f"_{machine}"))


def _number(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".")[:2])


def _shown(tags: tuple[str, ...]) -> str:
    return f"{tags[0]} and {len(tags) - 1} more" if len(tags) > 1 else tags[0]
