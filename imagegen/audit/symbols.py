"""Check for symbols that nothing defines. A file with such a symbol cannot be loaded.

Only strong symbols count. Late binding does not help, because CPython and ctypes load with RTLD_NOW. The rule for torch
covers symbols that only torch may define, and the check of libraries covers symbols of missing libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from imagegen.audit.catalogue import driver_symbols, is_standard
from imagegen.audit.closure import Closure, How, Library, Loader
from imagegen.audit.demangle import demangle
from imagegen.audit.lists import few, listed
from imagegen.audit.model import Finding, Severity
from imagegen.audit.torch_rule import owned
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


def check(loader: Loader) -> Iterator[Finding]:
    """Yield findings about symbols that nothing defines, or nothing that the file asks for."""
    scope = SymbolScope(loader)
    by_package: dict[str, list[_Missing]] = {}
    for library in scope.loader.libraries:
        missing = _missing(scope, library)
        if missing is not None:
            by_package.setdefault(library.package, []).append(missing)
    for package, files in by_package.items():
        yield from _findings(scope, package, files)
    if scope.loader.exhausted:
        why = "the files have more dependencies on each other than any real stack; not all of them were followed"
        yield Finding(Severity.WARNING, "not-followed", "", None, why)


class SymbolScope:
    """The symbols that each library defines, as a loader's files see them."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    @cached_property
    def always_visible(self) -> frozenset[str]:
        """Return the symbols that each file of a Python process sees without depending on them."""
        return frozenset().union(*(library.elf.exported for library in self.loader.everywhere))

    @cached_property
    def api(self) -> bool:
        """Return whether Python's C API is known, of the interpreter or its libpython."""
        return "PyObject_Call" in self.always_visible

    def unseen(self, library: Library, closure: Closure) -> frozenset[str]:
        missing = library.elf.undefined - self.always_visible
        for other in closure.libraries[1:]:
            if not missing:
                break
            missing -= other.elf.exported
        return missing

    def definers(self, symbols: frozenset[str]) -> Mapping[str, Library]:
        """Return the library that defines each of the symbols, of all libraries."""
        owners: dict[str, Library] = {}
        for library in (*self.loader.libraries, *self.loader.system.values()):
            for symbol in symbols & library.elf.exported:
                owners.setdefault(symbol, library)
        return owners


def _missing(scope: SymbolScope, library: Library) -> _Missing | None:
    if library.program:  # it has a process of its own, and its symbols are bound at the first call
        return None
    closure = scope.loader.closure(library)
    missing = scope.unseen(library, closure)
    if not missing:
        return None
    of_python = frozenset(symbol for symbol in missing if _OF_PYTHON.fullmatch(symbol))
    missing -= of_python
    # Any file that loads the driver's library provides its symbols; others need not ask for it.
    missing -= frozenset(symbol for symbol in missing if driver_symbols().fullmatch(symbol))
    if not closure.whole:
        missing = _certain(missing, closure)
    underlinked = frozenset(scope.definers(missing)) if missing else missing
    nowhere = missing - underlinked
    if library.package.partition(" ")[0] != "torch" and any(owned(symbol) for symbol in nowhere):
        nowhere = frozenset()  # the file was built for another torch, which also explains the other symbols
    if not scope.api or not (of_python and scope.loader.imported(library)):
        of_python = frozenset()
    return _Missing(library, nowhere, underlinked, of_python) if nowhere or underlinked or of_python else None


def _certain(missing: frozenset[str], closure: Closure) -> frozenset[str]:
    """Return the symbols that none of a file's absent libraries can define.

    If the base is not known, these are the symbols that no library of C and C++ defines.
    """
    absent = [
        resolution
        for resolution in closure.resolutions
        if resolution.library is None and resolution.how is not How.DRIVER
    ]
    if any(resolution.how is not How.UNKNOWN or not is_standard(resolution.name) for resolution in absent):
        return frozenset()
    return frozenset(symbol for symbol in missing if _OF_ONE_PROJECT.match(symbol))


def _findings(scope: SymbolScope, package: str, files: list[_Missing]) -> Iterator[Finding]:
    undefined = [(missing.library, missing.undefined) for missing in files if missing.undefined]
    imported = [(library, symbols) for library, symbols in undefined if scope.loader.imported(library)]
    not_imported = [(library, symbols) for library, symbols in undefined if not scope.loader.imported(library)]
    for severity, group in ((Severity.ERROR, imported), (Severity.WARNING, not_imported)):
        if group:
            yield _finding(severity, "undefined-symbol", package, group, "nothing defines {}")
    if python := [(missing.library, missing.python) for missing in files if missing.python]:
        interpreter = f"Python {scope.loader.subject.python or ''}".strip()
        yield _finding(Severity.ERROR, "python-symbol", package, python, f"{interpreter} does not define {{}}")
    if underlinked := [(missing.library, missing.underlinked) for missing in files if missing.underlinked]:
        first = min(underlinked[0][1])
        owner = scope.definers(frozenset({first}))[first]
        template = f"{{}} is defined by {owner.path}, which the file does not ask for"
        yield _finding(Severity.INFO, "underlinked", package, underlinked, template)


def _finding(
    severity: Severity, id_: str, package: str, files: list[tuple[Library, frozenset[str]]], template: str
) -> Finding:
    path, symbols = files[0][0].path, sorted(files[0][1])
    count = len(frozenset().union(*(file_symbols for _, file_symbols in files)))
    evidence = template.format(demangle(symbols[0]))
    if count > 1 or len(files) > 1:
        evidence += f" ({counted(count, 'symbol')} in {counted(len(files), 'file')})"
    details = few([f"{library.path}: {listed(missing)}" for library, missing in files], _FILES, "files")
    return Finding(severity, id_, package, path, evidence, details)
