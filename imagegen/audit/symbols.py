"""Symbols that nothing defines: the file cannot be loaded.

A symbol counts where it is strong. That it would be bound late helps nothing: CPython and ctypes load with RTLD_NOW.
What torch alone may define is left to the rule for torch, and what a missing library would define to the libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from imagegen.audit.closure import Closure, How, Library, Loader
from imagegen.audit.demangle import demangle
from imagegen.audit.known import driver_symbols, is_standard
from imagegen.audit.model import Finding, Severity, Subject
from imagegen.audit.torch_rule import owned
from imagegen.audit.wording import few, listed
from imagegen.core.text import counted

_OF_PYTHON = re.compile(r"_?Py[A-Z_]\w*")
# A C++ name in a namespace or class that is neither the standard library's nor the compiler's.
_OF_ONE_PROJECT = re.compile(r"_ZNK?\d+(?!__|std)[A-Za-z]")
_FILES = 20  # of a package


@dataclass(frozen=True)
class _Missing:
    """The symbols that one file needs and does not see, by cause."""

    library: Library
    undefined: frozenset[str] = frozenset()  # defined nowhere
    underlinked: frozenset[str] = frozenset()  # defined by something that it does not ask for
    python: frozenset[str] = frozenset()  # of Python's C API, and not of this interpreter


def check(subject: Subject) -> Iterator[Finding]:
    scope = Scope(Loader(subject), subject.python)
    by_package: dict[str, list[_Missing]] = {}
    for library in scope.loader.libraries:
        missing = _missing(scope, library)
        if missing is not None:
            by_package.setdefault(library.package, []).append(missing)
    for package, files in by_package.items():
        yield from _findings(scope, package, files)
    if scope.loader.exhausted:
        why = "the files ask for each other more often than those of any real stack; not all of them were followed"
        yield Finding(Severity.WARNING, "not-followed", "", None, why)


class Scope:
    """The symbols that each library defines, as a loader's files see them."""

    def __init__(self, loader: Loader, python: str | None) -> None:
        self.loader = loader
        self.python = python  # "3.11"

    @cached_property
    def everybody(self) -> frozenset[str]:
        """Return the symbols that each file of a Python process sees without depending on them."""
        return frozenset().union(*(library.elf.exported for library in self.loader.everywhere))

    @cached_property
    def api(self) -> bool:
        """Return whether Python's C API is known, of the interpreter or its libpython."""
        return "PyObject_Call" in self.everybody

    def unseen(self, library: Library, closure: Closure) -> frozenset[str]:
        missing = library.elf.undefined - self.everybody
        for other in closure.libraries[1:]:
            if not missing:
                break
            missing -= other.elf.exported
        return missing

    def elsewhere(self, symbols: frozenset[str]) -> Mapping[str, Library]:
        """Return which library, of all that there are, defines each of the symbols."""
        found: dict[str, Library] = {}
        for library in (*self.loader.libraries, *self.loader.system.values()):
            for symbol in symbols & library.elf.exported:
                found.setdefault(symbol, library)
        return found


def _missing(scope: Scope, library: Library) -> _Missing | None:
    if library.program:  # its symbols are bound when they are first called, and its process is its own
        return None
    closure = scope.loader.closure(library)
    missing = scope.unseen(library, closure)
    if not missing:
        return None
    of_python = frozenset(symbol for symbol in missing if _OF_PYTHON.fullmatch(symbol))
    missing -= of_python
    # Whatever loads the driver's library gives its symbols; a file need not ask for it itself.
    missing -= frozenset(symbol for symbol in missing if driver_symbols().fullmatch(symbol))
    if not closure.whole:
        missing = _certain(missing, closure)
    there = frozenset(scope.elsewhere(missing)) if missing else missing
    nowhere = missing - there
    if library.package.partition(" ")[0] != "torch" and any(owned(symbol) for symbol in nowhere):
        nowhere = frozenset()  # it was built for another torch, which explains the others too
    if not scope.api or not (of_python and scope.loader.imported(library)):
        of_python = frozenset()
    return _Missing(library, nowhere, there, of_python) if nowhere or there or of_python else None


def _certain(missing: frozenset[str], closure: Closure) -> frozenset[str]:
    """Return the symbols that none of a file's absent libraries can define.

    Where the base is not known, that is what no library of C and C++ defines.
    """
    absent = [found for found in closure.found if found.library is None and found.how is not How.DRIVER]
    if any(found.how is not How.UNKNOWN or not is_standard(found.name) for found in absent):
        return frozenset()
    return frozenset(symbol for symbol in missing if _OF_ONE_PROJECT.match(symbol))


def _findings(scope: Scope, package: str, files: list[_Missing]) -> Iterator[Finding]:
    undefined = [(missing.library, missing.undefined) for missing in files if missing.undefined]
    imported = [(library, symbols) for library, symbols in undefined if scope.loader.imported(library)]
    others = [(library, symbols) for library, symbols in undefined if not scope.loader.imported(library)]
    for severity, there in ((Severity.ERROR, imported), (Severity.WARNING, others)):
        if there:
            yield _finding(severity, "undefined-symbol", package, there, "nothing defines {}")
    if python := [(missing.library, missing.python) for missing in files if missing.python]:
        what = f"Python {scope.python or ''}".strip()
        yield _finding(Severity.ERROR, "python-symbol", package, python, f"{what} does not define {{}}")
    if underlinked := [(missing.library, missing.underlinked) for missing in files if missing.underlinked]:
        first = min(underlinked[0][1])
        owner = scope.elsewhere(frozenset({first}))[first]
        says = f"{{}} is defined by {owner.path}, which the file does not ask for"
        yield _finding(Severity.INFO, "underlinked", package, underlinked, says)


def _finding(
    severity: Severity, id_: str, package: str, files: list[tuple[Library, frozenset[str]]], says: str
) -> Finding:
    path, symbols = files[0][0].path, sorted(files[0][1])
    count = len(frozenset().union(*(there for _, there in files)))
    evidence = says.format(demangle(symbols[0]))
    if count > 1 or len(files) > 1:
        evidence += f" ({counted(count, 'symbol')} in {counted(len(files), 'file')})"
    details = few(files, _FILES, lambda file: f"{file[0].path}: {listed(file[1])}", "files")
    return Finding(severity, id_, package, path, evidence, details)
