"""Imports of installed packages that fail because another package does not define a name, a module or an argument.

From the top-level modules of each package, and from the modules of its commands, the check follows the imports that
run at module level through all packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from imagegen.audit.api.exports import OPEN, Module, parents
from imagegen.audit.api.import_time import PYTHON, ImportedName, ImportTime, VersionTest
from imagegen.audit.api.lookup import Api
from imagegen.audit.api.source import module_name
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, Package, Severity, required_name

ReadModule = Callable[[Package, str], ImportTime | None]
"""Read the Python file of a package at a path; None if its source is not available."""

_SHOWN = 20  # lines of details
# Top-level modules that packages install by mistake, or for their own development.
_DEVELOPMENT = {"benchmark", "benchmarks", "bin", "conftest", "doc", "docs", "example", "examples", "scripts", "setup",
                "test", "tests", "testing", "tool", "tools"}  # fmt: skip


class Failure(NamedTuple):
    """A statement that raises when its module is imported; `reach` is how the import gets there."""

    package: Package
    path: str
    line: int
    error: str  # "imports huggingface_hub.HfFolder"
    provider: Package | None  # None for Python
    reach: tuple[str, ...]  # the modules from the one that users import to this one
    command: str = ""  # the command of the package that gets there, if no import of a package does


def failures(packages: Iterable[Package], python: str | None, read_module: ReadModule) -> list[Failure]:
    """Return the statements that raise when the packages are imported, each once, sorted."""
    walk = _Walk(tuple(packages), python, read_module)
    walk.follow(roots(walk.packages))
    return sorted(walk.failures.values(), key=lambda failure: (failure.package.name, failure.path, failure.line))


def roots(packages: Iterable[Package]) -> dict[str, str]:
    """Return the modules that users import: top-level ones, with no command, then those of commands with its name."""
    modules = {name: "" for package in packages for name in top_modules(package)}
    for package in packages:
        for entry_point in package.entry_points:
            modules.setdefault(entry_point, entry_point)
    return modules


def top_modules(package: Package) -> list[str]:
    """Return the modules that `import` of a package means: those it declares or is named after, else all public ones."""
    if package.imports:
        return list(package.imports)
    tops = {
        name
        for path in package.files
        if path.count("/") < 2 and path.endswith(("/__init__.py", ".py", ".so")) and (name := module_name(path))
    }
    tops = {name for name in tops if "." not in name and not name.startswith("_")}
    named = {name for name in tops if required_name(name) == package.name}
    return sorted(named or tops - _DEVELOPMENT)


def check(packages: Iterable[Package], python: str | None, read_module: ReadModule) -> Iterator[Finding]:
    """Yield an error for each file whose import fails, and a warning for one that only a command imports."""
    by_file: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures(packages, python, read_module):
        by_file.setdefault((str(failure.package), failure.path), []).append(failure)
    for (package, path), found in by_file.items():
        first, *further = found
        severity = Severity.WARNING if all(failure.command for failure in found) else Severity.ERROR
        lines = [f"line {failure.line} {failure.error}" for failure in further]
        details = (f"reached by import {' > '.join(first.reach)}", *few(lines, _SHOWN))
        yield Finding(severity, "api-import", package, path, f"line {first.line} {first.error}", details)


@dataclass(frozen=True, slots=True)
class _File:
    package: Package
    path: str


class _Modules(Mapping[str, Module]):
    """The definitions of all modules by name, each read when it is first looked up."""

    def __init__(self, files: Mapping[str, _File | None], read: Callable[[str], ImportTime]) -> None:
        self._files, self._read = files, read

    def __getitem__(self, name: str) -> Module:
        if name not in self._files:
            raise KeyError(name)
        return self._read(name).defined

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class _Walk:
    """Follows imports through packages."""

    def __init__(self, packages: tuple[Package, ...], python: str | None, read_module: ReadModule) -> None:
        self.packages = packages
        self._python, self._read_module = python, read_module
        self._files = _files(packages)
        self._read_modules: dict[str, ImportTime] = {}
        self._api = Api(_Modules(self._files, self.read))
        self._by_name = {package.name: package for package in packages}
        self._reach: dict[str, tuple[str, ...]] = {}
        self.failures: dict[tuple[str, str, int], Failure] = {}

    def read(self, name: str) -> ImportTime:
        """Return a module; one without a source, as a compiled one or a namespace package, may define any name."""
        if name not in self._read_modules:
            file = self._files[name]
            is_source = file is not None and file.path.endswith(".py")
            read = self._read_module(file.package, file.path) if file and is_source else None
            self._read_modules[name] = read or ImportTime(OPEN)
        return self._read_modules[name]

    def follow(self, modules: Mapping[str, str]) -> None:
        """Import the modules, those of packages before those of commands."""
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
            if self._all_hold(refusal.tests) and (others := self._compared(refusal.tests, file.package)):
                shown = " and ".join(
                    f"{provider.name} {provider.version}" if provider else f"Python {self._python}"
                    for provider in others
                )
                self._fail(module, file, refusal.line, f"refuses {shown}", others[0], command)
        for name in read.names:
            if self._all_hold(name.tests):
                self._name(name, module, file, command, pending)

    def _name(self, name: ImportedName, module: str, file: _File, command: str, pending: list[str]) -> None:
        top = name.name.partition(".")[0]
        if top not in self._files or name.keyword:
            return
        missing = self._api.missing(name.name, name.modules)
        if missing is not None:
            parent = self._files[missing.rpartition(".")[0]]
            if parent and parent.package is not file.package:
                self._fail(
                    module,
                    file,
                    name.line,
                    f"imports {missing}, which {parent.package} does not define",
                    parent.package,
                    command,
                )
            return
        for imported in self._loaded(name):
            self._reach_module(imported, self._reach[module], pending)

    def _loaded(self, name: ImportedName) -> Iterator[str]:
        """Yield the modules that the name loads: its own, and the one from which a lazy package takes its last part."""
        above, _, last = name.name.rpartition(".")
        yield ".".join(name.name.split(".")[: name.modules])
        if above in self._files:
            read = self.read(above)
            if last in read.lazy:
                yield read.lazy[last]
            elif name.name in self._files and last not in read.defined.names:
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

    def _fail(self, module: str, file: _File, line: int, error: str, provider: Package | None, command: str) -> None:
        failure = Failure(file.package, file.path, line, error, provider, self._reach[module], command)
        self.failures.setdefault((file.package.name, file.path, line), failure)


def _files(packages: Iterable[Package]) -> dict[str, _File | None]:
    """Return the modules of all packages; None for a namespace package."""
    files: dict[str, _File | None] = {}
    for package in packages:
        for path in package.files:
            if path.endswith((".py", ".so")) and (name := module_name(path)):
                if name not in files or path.endswith("__init__.py"):
                    files[name] = _File(package, path)
    namespaces = {parent for name in files for parent in parents(name)} - files.keys()
    return dict.fromkeys(namespaces, None) | files
