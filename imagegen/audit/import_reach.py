"""Imports of installed packages that fail because another package does not define a name, a module or an argument.

From the top-level modules of each package, and from the modules of its commands, the check follows the imports that
run at module level through all packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from imagegen.audit.api.exports import HOOK, OPEN, Module, parents
from imagegen.audit.api.import_time import (
    PYTHON,
    ImportedName,
    ImportTime,
    RequiredRows,
    VersionTest,
    removed_name,
    required_tests,
)
from imagegen.audit.api.lookup import Api
from imagegen.audit.api.source import is_package, module_name
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, ModuleReader, Package, Severity, Subject, required_name
from imagegen.core.text import counted

_SHOWN = 20  # lines of details
# Top-level modules that packages install by mistake, or for their own development.
_DEVELOPMENT = {"benchmark", "benchmarks", "bin", "conftest", "doc", "docs", "example", "examples", "scripts", "setup",
                "test", "tests", "testing", "tool", "tools"}  # fmt: skip


class Failure(NamedTuple):
    """A statement that raises when its module is imported; `reach` is how the import gets there."""

    package: Package
    path: str
    line: int
    name: str  # the name that does not exist, "huggingface_hub.HfFolder"; "" if a release is refused
    provider: Package | None  # the package that lacks the name or is refused; None for Python
    reach: tuple[str, ...]  # the modules from the one that users import to this one
    command: str = ""  # the command of the package that gets there, if no import of a package does

    def __str__(self) -> str:
        provider = str(self.provider or "this Python")
        problem = f"imports {self.name}, which {provider} does not define" if self.name else f"refuses {provider}"
        return f"line {self.line} {problem}" if self.line else f"was compiled for another release than {provider}"


def failures(packages: Iterable[Package], python: str | None, modules: ModuleReader) -> list[Failure]:
    """Return the statements that raise when the packages are imported, each once, sorted."""
    walk = _Walk(tuple(packages), python, modules)
    walk.follow(roots(walk.packages))
    return sorted(walk.failures.values(), key=lambda failure: (failure.package.name, failure.path, failure.line))


def roots(packages: Iterable[Package]) -> dict[str, str]:
    """Return the modules that users import: top-level ones with "", then modules of commands with their name."""
    modules = {name: "" for package in packages for name in top_modules(package)}
    for package in packages:
        for entry_point in package.entry_points:
            modules.setdefault(entry_point, entry_point)
    return modules


def top_modules(package: Package) -> list[str]:
    """Return the modules that users import: those that are declared or named after it, else all public ones."""
    if package.imports:
        return list(package.imports)
    tops = {
        name
        for path in package.files
        if path.count("/") < 2 and path.endswith(("/__init__.py", ".py", ".so")) and (name := module_name(path))
    }
    tops = {name for name in tops if "." not in name and not name.startswith("_")}
    named = {name for name in tops if required_name(name) == package.name}
    return sorted(named or tops - _DEVELOPMENT or _below_namespaces(package))


def _below_namespaces(package: Package) -> set[str]:
    """Return the outermost packages of one without a top-level module, as google.api_core."""
    names = {name for path in package.files if path.endswith("/__init__.py") and (name := module_name(path))}
    public = {name for name in names if not any(part.startswith("_") for part in name.split("."))}
    outermost = {name for name in public if names.isdisjoint(parents(name))}
    return {name for name in outermost if name.partition(".")[0] not in _DEVELOPMENT}


def check(subject: Subject) -> Iterator[Finding]:
    """Yield an error for each file whose import fails, and a warning for one that only a command imports."""
    if subject.modules is None:
        return
    by_file: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures(subject.packages, subject.python, subject.modules):
        file = failure.path if failure.line else f"compiled for {failure.provider}"
        by_file.setdefault((str(failure.package), file), []).append(failure)
    subject.modules.close()
    if unread := sorted(subject.modules.unread):
        yield Finding(Severity.INFO, "api-unread", "", None, f"{counted(len(unread), 'package')}", few(unread, _SHOWN))
    for (package, _), failing in by_file.items():
        first, *further = failing
        severity = Severity.WARNING if all(failure.command for failure in failing) else Severity.ERROR
        others = [str(failure) if failure.line else failure.path for failure in further]
        details = (f"reached by import {' > '.join(first.reach)}", *few(others, _SHOWN))
        yield Finding(severity, "api-import", package, first.path, str(first), details)


@dataclass(frozen=True, slots=True)
class _File:
    package: Package
    path: str


class _Modules(Mapping[str, Module]):
    """The definitions of all modules by name, each read when it is first looked up."""

    def __init__(self, files: Mapping[str, _File | None], walk: _Walk) -> None:
        self._files, self._walk = files, walk

    def __getitem__(self, name: str) -> Module:
        if name not in self._files:
            raise KeyError(name)
        return self._walk.read(name).defined

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class _Walk:
    """Follows imports through packages."""

    def __init__(self, packages: tuple[Package, ...], python: str | None, modules: ModuleReader) -> None:
        self.packages = packages
        self._python, self._modules = python, modules
        self._files = _files(packages)
        self._read_modules: dict[str, ImportTime] = {}
        self._api = Api(_Modules(self._files, self))
        self._by_name = {package.name: package for package in packages}
        self._reach: dict[str, tuple[str, ...]] = {}
        self._followed: set[tuple[str, int]] = set()  # names that exist, whose modules are reached
        self._numpy_2 = self._all_hold(
            [VersionTest("numpy", ">=", "2")]
        )  # which extensions of NumPy 1 do not load with
        self.failures: dict[tuple[str, str, int], Failure] = {}

    def read(self, name: str) -> ImportTime:
        """Return a module; one without a source, as a compiled one or a namespace package, may define any name."""
        if name not in self._read_modules:
            file = self._files[name]
            is_read = file is not None and (file.path.endswith(".py") or self._numpy_2)
            read = self._modules.read(file.package, file.path) if file and is_read else None
            self._read_modules[name] = read or ImportTime(OPEN)
        return self._read_modules[name]

    def follow(self, modules: Mapping[str, str]) -> None:
        """Import the modules of packages, then the modules of commands."""
        for command in ("", *dict.fromkeys(filter(None, modules.values()))):
            pending: list[str] = []
            for module in (name for name, of_command in modules.items() if of_command == command):
                self._reach_module(module, (), pending)
            for module in pending:  # the list grows
                self._import(module, command, pending)

    def _reach_module(self, name: str, reach: tuple[str, ...], pending: list[str]) -> None:
        for module in (*parents(name), name):
            if module in self._files and module not in self._reach:
                self._reach[module] = (*reach, module)
                pending.append(module)

    def _import(self, module: str, command: str, pending: list[str]) -> None:
        file, read = self._files[module], self.read(module)
        if file is None:
            return
        for refusal in read.refusals:
            if self._all_hold(refusal.tests) and (refused := self._compared(refusal.tests, file.package)):
                self._fail(module, file, refusal.line, "", refused[0], command)
        for rows in read.required:
            for test in self._required(rows):
                if self._all_hold([test.opposite()]) and (refused := self._compared([test], file.package)):
                    self._fail(module, file, rows.line, "", refused[0], command)
        for name in read.names:
            if self._all_hold(name.tests):
                self._name(name, module, file, command, pending)

    def _required(self, rows: RequiredRows) -> Iterator[VersionTest]:
        """Yield the tests of rows of a table, without those of Python, whose last digit is not known."""
        module, _, name = rows.table.rpartition(".")
        table = self.read(module).tables.get(name, {}) if module in self._files else {}
        tests = (test for key in rows.keys for test in required_tests(table.get(key, "")))
        yield from (test for test in tests if test.name != PYTHON)

    def _name(self, name: ImportedName, module: str, file: _File, command: str, pending: list[str]) -> None:
        key = (name.name, name.modules)
        if key in self._followed:
            return
        if name.name.partition(".")[0] not in self._files:
            removed = removed_name(name.name)
            if removed and self._all_hold([removed.lacks]) and removed.unless not in self._by_name:
                self._fail(module, file, name.line, removed.name, self._by_name.get(removed.lacks.name), command)
            return
        missing = self._api.missing(name.name, name.modules)
        if missing is not None:
            above = missing.rpartition(".")[0]
            parent = self._files[above]
            if parent and parent.package is not file.package and not self._is_hooked(above):
                self._fail(module, file, name.line, missing, parent.package, command)
            return
        self._followed.add(key)
        for imported in self._loaded(name, module):
            self._reach_module(imported, self._reach[module], pending)

    def _is_hooked(self, module: str) -> bool:
        """Return whether the module imports one that may define names of others, by a hook of the import system."""
        imported = (name.name for name in self.read(module).names if name.name in self._files)
        return any(HOOK in self.read(name).defined.names for name in (module, *imported))

    def _loaded(self, name: ImportedName, module: str) -> Iterator[str]:
        """Yield the modules that the name loads: its own, and the one from which a lazy package takes its last part.

        A package that imports a module of its own (`from . import login`) binds the name by that.
        """
        above, _, last = name.name.rpartition(".")
        yield ".".join(name.name.split(".")[: name.modules])
        if above in self._files:
            read = self.read(above)
            if last in read.lazy:
                yield read.lazy[last]
            elif name.name in self._files and (above == module or last not in read.defined.names):
                yield name.name

    def _all_hold(self, tests: Iterable[VersionTest]) -> bool:
        return all((version := self._version(test.name)) is not None and test.holds(version) for test in tests)

    def _version(self, name: str) -> Version | None:
        package = self._package(name)
        text = self._python if name == PYTHON else package.version if package else None
        try:
            return Version(text) if text else None
        except InvalidVersion:
            return None

    def _package(self, name: str) -> Package | None:
        """Return the distribution with this name, or the one that has the top-level module."""
        file = self._files.get(name)
        return self._by_name.get(required_name(name)) or (file.package if file else None)

    def _compared(self, tests: Iterable[VersionTest], package: Package) -> list[Package | None]:
        """Return the other packages that are compared; None stands for Python."""
        compared = [self._package(test.name) if test.name != PYTHON else None for test in tests]
        return [provider for provider in compared if provider is not package]

    def _fail(self, module: str, file: _File, line: int, name: str, provider: Package | None, command: str) -> None:
        failure = Failure(file.package, file.path, line, name, provider, self._reach[module], command)
        self.failures.setdefault((file.package.name, file.path, line), failure)


def _files(packages: Iterable[Package]) -> dict[str, _File | None]:
    """Return the modules of all packages; None for a namespace package."""
    files: dict[str, _File | None] = {}
    for package in packages:
        for path in package.files:
            name = module_name(path) if path.endswith((".py", ".so")) else None
            previous = files.get(name) if name else None
            if name and (not previous or (is_package(path) and not is_package(previous.path))):
                files[name] = _File(package, path)
    namespaces = {parent for name in files for parent in parents(name)} - files.keys()
    return dict.fromkeys(namespaces, None) | files
