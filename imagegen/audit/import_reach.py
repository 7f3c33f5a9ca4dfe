"""Imports of installed packages that fail because another package does not define a name or a module.

From the top-level modules of each package, the check follows the imports that run at module level through all
packages; then from its other modules that import another package, which are its commands and optional parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from imagegen.audit.api.conditions import PYTHON, VersionTest, required_tests
from imagegen.audit.api.exports import CREATES, HOOK, OPEN, Module, parents
from imagegen.audit.api.import_time import ImportedName, ImportTime, RequiredRows, removed_modules, removed_name
from imagegen.audit.api.lookup import Api
from imagegen.audit.api.source import is_package, module_name
from imagegen.audit.lists import few
from imagegen.audit.model import Finding, ModuleReader, Package, Severity, Subject, required_name
from imagegen.core.text import counted

_SHOWN = 20  # lines of details
_HOPS = 4  # modules from one that uses _LazyModule to the one that defines it
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
    share: Share | None = None  # if no import of a package's top-level modules gets there

    def __str__(self) -> str:
        provider = str(self.provider or "this Python")
        problem = f"imports {self.name}, which {provider} does not define" if self.name else f"refuses {provider}"
        return f"line {self.line} {problem}" if self.line else f"was compiled for another release than {provider}"


class Share(NamedTuple):
    """The modules of a package that cannot be imported because of another one."""

    importing: int  # modules that import the other package
    failing: int  # of these
    unusable: int  # public modules that fail, or load one that fails
    modules: int  # all public ones of the package

    @property
    def is_much(self) -> bool:
        """True if a quarter of the modules that import the other package fail."""
        return 4 * self.failing >= self.importing

    @property
    def is_large(self) -> bool:
        """True if a tenth of the package fails."""
        return 10 * self.unusable >= self.modules

    def __str__(self) -> str:
        return f"{self.failing} of {counted(self.importing, 'module')} that import it fail"


def failures(packages: Iterable[Package], python: str | None, modules: ModuleReader) -> list[Failure]:
    """Return the statements that raise when the packages are imported, each once, sorted."""
    walk = _Walk(tuple(packages), python, modules)
    walk.follow(name for package in walk.packages for name in top_modules(package))
    at_import = set(walk.failures)
    walk.follow(entry_point for package in walk.packages for entry_point in package.entry_points)
    walk.follow(walk.parts())
    failing = {
        key: failure if key in at_import else failure._replace(share=walk.share_of(failure.package, failure.provider))
        for key, failure in walk.failures.items()
    }
    return sorted(failing.values(), key=lambda failure: (failure.package.name, failure.path, failure.line))


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
    outermost = {name for name in names if _is_public(name) and names.isdisjoint(parents(name))}
    return {name for name in outermost if name.partition(".")[0] not in _DEVELOPMENT}


def check(subject: Subject) -> Iterator[Finding]:
    """Yield an error for each file that an import cannot load, and a finding for each pair whose optional parts fail.

    The latter is a warning if many of the modules that import the other package fail, else a note.
    """
    if subject.modules is None:
        return
    failed = failures(subject.packages, subject.python, subject.modules)
    subject.modules.close()
    if unread := sorted(subject.modules.unread):
        yield Finding(Severity.INFO, "api-unread", "", None, f"{counted(len(unread), 'package')}", few(unread, _SHOWN))
    groups: dict[tuple[str, ...], list[Failure]] = {}
    for failure in failed:
        file = failure.path if failure.line else f"compiled for {failure.provider}"
        groups.setdefault((str(failure.package), str(failure.provider) if failure.share else file), []).append(failure)
    for (package, *_), failing in groups.items():
        first, *further = failing
        reach = f"reached by import {' > '.join(first.reach)}"
        if first.share:
            severity = Severity.WARNING if first.share.is_much else Severity.INFO
            details = (reach, str(first.share), *few([f"{failure.path} {failure}" for failure in further], _SHOWN))
        else:
            severity = Severity.ERROR
            further_lines = [str(failure) if failure.line else failure.path for failure in further]
            details = (reach, *few(further_lines, _SHOWN))
        yield Finding(severity, "api-import", package, first.path, str(first), details)


def _is_public(module: str) -> bool:
    return not any(name.startswith("_") for name in module.split("."))


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
        self._missing: dict[tuple[str, int], str | None] = {}  # of a name whose first parts are modules
        self._loads: dict[str, set[str]] = defaultdict(set)  # the modules that a module loads
        # Extensions of NumPy 1 do not load with it.
        self._numpy_2 = self._all_hold([VersionTest("numpy", ">=", "2")])
        self.failures: dict[tuple[str, str, int], Failure] = {}
        self._failing: dict[tuple[str, str, int], str] = {}  # the modules of the failures
        self._shares: dict[tuple[str, str], Share] = {}  # by package and provider

    def read(self, name: str) -> ImportTime:
        """Return a module; one without a source, as a compiled one or a namespace package, may define any name."""
        if name not in self._read_modules:
            file = self._files[name]
            is_read = file is not None and (file.path.endswith(".py") or self._numpy_2)
            read = self._modules.read(file.package, file.path) if file and is_read else None
            self._read_modules[name] = read or ImportTime(OPEN)
        return self._read_modules[name]

    def follow(self, modules: Iterable[str]) -> None:
        """Import modules, and all that they import."""
        pending: list[str] = []
        for module in modules:
            self._reach_module(module, (), pending)
        for module in pending:  # the list grows
            self._import(module, pending)

    def parts(self) -> list[str]:
        """Return the modules that may import another package, without those that are for other releases of one."""
        tops = {name for name in self._files if "." not in name} | removed_modules()
        modules = [
            name
            for package in self.packages
            for path in sorted(self._modules.importing(package, tops))
            if (name := module_name(path)) and self._files.get(name) and _DEVELOPMENT.isdisjoint(name.split("."))
        ]
        unused = {
            imported
            for module in modules
            for name in self.read(module).names
            if not self._all_hold(name.tests)
            for imported in (name.name, ".".join(name.name.split(".")[: name.modules]))
            if imported in self._files and imported not in self._reach
        }
        return [module for module in modules if unused.isdisjoint((*parents(module), module))]

    def share_of(self, package: Package, provider: Package | None) -> Share:
        """Return how much of a package fails because of the provider."""
        key = package.name, provider.name if provider else ""
        if key not in self._shares:
            self._shares[key] = self._count_share(package, provider)
        return self._shares[key]

    def _count_share(self, package: Package, provider: Package | None) -> Share:
        causes = {self._failing[key] for key, other in self.failures.items()
                  if other.package is package and other.provider is provider}  # fmt: skip
        modules = {name for name, file in self._files.items() if file and file.package is package}
        importing = causes | {module for module in modules & self._read_modules.keys() if self._uses(module, provider)}
        unusable = self._dependents(causes) & modules
        public, unusable_public = (sum(map(_is_public, names)) for names in (modules, unusable))
        return Share(len(importing), len(importing & unusable), unusable_public, public)

    def _uses(self, module: str, provider: Package | None) -> bool:
        """Return whether a module imports one of the provider."""
        for name in self._read_modules[module].names:
            modules = (*parents(name.name), name.name)
            files = [file for loaded in modules if (file := self._files.get(loaded))]
            if files and files[-1].package is provider:
                return True
        return False

    def _dependents(self, causes: Iterable[str]) -> set[str]:
        """Return the modules that cannot be imported without others, with these."""
        dependents, pending = set(causes), list(causes)
        for module in pending:  # the list grows
            new = self._loaded_by[module] - dependents
            dependents |= new
            pending += new
        return dependents

    @cached_property
    def _loaded_by(self) -> Mapping[str, set[str]]:
        """The modules that load a module, by its name: those that import it or a module below it."""
        loaded_by: dict[str, set[str]] = defaultdict(set)
        for module in self._files:
            for loaded in self._loads.get(module, ()):
                for part in (*parents(loaded), loaded):
                    loaded_by[part].add(module)
            for package in parents(module):
                loaded_by[package].add(module)
        return loaded_by

    def _reach_module(self, name: str, reach: tuple[str, ...], pending: list[str]) -> None:
        for module in (*parents(name), name):
            if module in self._files and module not in self._reach:
                self._reach[module] = (*reach, module)
                pending.append(module)

    def _import(self, module: str, pending: list[str]) -> None:
        file, read = self._files[module], self.read(module)
        if file is None:
            return
        for refusal in read.refusals:
            if self._all_hold(refusal.tests) and (refused := self._compared(refusal.tests, file.package)):
                self._fail(module, file, refusal.line, "", refused[0])
        for rows in read.required:
            for test in self._required(rows):
                if self._all_hold([test.opposite()]) and (refused := self._compared([test], file.package)):
                    self._fail(module, file, rows.line, "", refused[0])
        for name in read.names:
            if self._all_hold(name.tests):
                self._name(name, module, file, pending)

    def _required(self, rows: RequiredRows) -> Iterator[VersionTest]:
        """Yield the tests of rows of a table, without those of Python, whose last digit is not known."""
        module, _, name = rows.table.rpartition(".")
        table = self.read(module).tables.get(name, {}) if module in self._files else {}
        tests = (test for key in rows.keys for test in required_tests(table.get(key, "")))
        yield from (test for test in tests if test.name != PYTHON)

    def _name(self, name: ImportedName, module: str, file: _File, pending: list[str]) -> None:
        if name.name.partition(".")[0] not in self._files:
            removed = removed_name(name.name)
            if removed and self._all_hold([removed.lacks]) and removed.unless not in self._by_name:
                self._fail(module, file, name.line, removed.name, self._by_name.get(removed.lacks.name))
            return
        key = (name.name, name.modules)
        if key not in self._missing:
            self._missing[key] = self._api.missing(*key)
        if missing := self._missing[key]:
            above = missing.rpartition(".")[0]
            parent = self._files[above]
            if parent and parent.package is not file.package and not self._may_be_created(missing):
                self._fail(module, file, name.line, missing, parent.package)
            return
        for imported in self._loaded(name, module):
            self._loads[module].add(imported)
            self._reach_module(imported, self._reach[module], pending)

    def _may_be_created(self, missing: str) -> bool:
        """Return whether the sources do not show if a name exists.

        It may exist if the module above it imports one that changes how Python finds modules, if a package above it
        creates modules, or if a class of lazy modules answers names with its ending. Modules have names in lower case,
        and only packages have modules.
        """
        above, _, last = missing.rpartition(".")
        loaded = (name.name for name in self.read(above).names if name.name in self._files)
        if any(HOOK in self.read(name).defined.names for name in (above, *loaded)):
            return True
        if last.endswith(self._lazy_suffixes(above)):
            return True
        file = self._files[above]
        is_module = last.islower() and (file is None or is_package(file.path))
        return is_module and any(CREATES in self.read(name).defined.names for name in (*parents(above), above))

    def _lazy_suffixes(self, module: str) -> tuple[str, ...]:
        """Return the endings of names that the module's class of lazy modules answers, which it may import."""
        for _ in range(_HOPS):
            if suffixes := tuple(name[1:] for name in self.read(module).defined.names if name.startswith("*")):
                return suffixes
            imported = (name.name for name in self.read(module).names if name.name.endswith("._LazyModule"))
            module = next(imported, "").rpartition(".")[0]
            if module not in self._files:
                break
        return ()

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

    def _fail(self, module: str, file: _File, line: int, name: str, provider: Package | None) -> None:
        key = (file.package.name, file.path, line)
        if key not in self.failures:
            self.failures[key] = Failure(file.package, file.path, line, name, provider, self._reach[module])
            self._failing[key] = module


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
