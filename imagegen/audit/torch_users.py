"""The symbols that a package's extensions need of torch, the releases that have them, and the one it names."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from packaging.requirements import Requirement
from packaging.version import Version

from imagegen.audit import torch_exports
from imagegen.audit.model import Package, required_name
from imagegen.audit.tags import MACHINES, for_another_python
from imagegen.audit.torch_exports import ExportIndex, is_shim, owned_symbols
from imagegen.core.types import minor

X86_64 = 62  # e_machine

# "2.8.0.post2+cu12torch2.8cxx11abitrue", "2.1.2+pt28cu128", "libtorch_c_dlpack_addon_torch29-cuda.so"
_MINOR_IN_NAME = re.compile(r"(?:torch|(?<![a-z])pt)[-_.]?2[._]?(\d{1,2})(?!\d)", re.IGNORECASE)
_TORCH_LIBRARY = "_ZN5torch7LibraryC"  # constructors of torch::Library, which TORCH_LIBRARY runs
_NONE_SO_OLD, _NONE_SO_NEW = "0.1", "999.0"  # versions of torch that a requirement without a bound lets in
_LONGEST = 1000  # characters of a requirement; a number of more than 4,300 digits is an error of Python's
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}


@dataclass(frozen=True)
class Fit:
    """The torch that a package was built for, by its symbols, its version and its metadata."""

    stable: bool  # it uses nothing of torch but the C names of the stable ABI
    minors: tuple[str, ...]  # "2.8", "2.9": minors of the index that export all required symbols, oldest first
    declared: str | None  # the one minor that its version or its metadata names


@dataclass(frozen=True)
class TorchUser:
    """A package that uses torch: for each of its files the symbols that it requires and the package does not define.

    The files are those for `machine`, an ELF file's e_machine.
    """

    package: Package
    python: str | None
    machine: int
    required: Mapping[str, frozenset[str]]

    def on(self, torch_minor: str | None) -> Mapping[str, frozenset[str]]:
        """Return the required symbols for a minor of torch, because a package may bring one build of a file for each
        minor.

        If the minor is not known (None), return the symbols of all files.
        """
        if torch_minor is None:
            return self.required
        return {path: symbols for path, symbols in self.required.items() if _minor_in_name(path) in (None, torch_minor)}

    @property
    def index(self) -> ExportIndex:
        """The exports of torch's releases for the processor; empty for one without an index."""
        return export_index(self.machine)

    @cached_property
    def stable(self) -> bool:
        return all(is_shim(symbol) for symbols in self.required.values() for symbol in symbols)

    @cached_property
    def registers(self) -> bool:
        """Return whether loading it registers operators in objects whose layout changes with torch's minor release."""
        return any(symbol.startswith(_TORCH_LIBRARY) for symbols in self.required.values() for symbol in symbols)

    @cached_property
    def minors(self) -> tuple[str, ...]:
        """Return the minors of the index that export all needed symbols."""
        return tuple(dict.fromkeys(minor(release) for release, lacks in self.lacks.items() if lacks == frozenset()))

    @cached_property
    def lacks(self) -> Mapping[str, frozenset[str] | None]:
        """The missing symbols by release of the index; None where the package has no files for its minor."""
        index = self.index
        on = {release: self.on(minor(release)) for release in index.releases}
        return {
            release: index.lacks(release, frozenset().union(*files.values())) if files else None
            for release, files in on.items()
        }

    @cached_property
    def named(self) -> str | None:
        """The torch minor in the version's local label, which the package's builder sets."""
        label = self.package.version.partition("+")[2]
        return _minor_in_name(label)

    @cached_property
    def requirement(self) -> str | None:
        """Return the metadata's requirement on torch on Linux: "torch==2.8.0"; None without one."""
        specifiers = sorted(str(requirement.specifier) for requirement in _requirements(self.package, self.python))
        return "torch" + ",".join(filter(None, specifiers)) if specifiers else None

    @cached_property
    def pinned(self) -> str | None:
        """Return the one minor that the metadata allows; None if it allows several or none."""
        requirements = _requirements(self.package, self.python)
        releases = (_NONE_SO_OLD, *torch_exports.shipped().releases, _NONE_SO_NEW)
        allowed = {
            minor(release)
            for release in releases
            if all(release in requirement.specifier for requirement in requirements)
        }
        exact = {
            minor(specifier.version.removesuffix(".*"))
            for requirement in requirements
            for specifier in requirement.specifier
            if _is_exact(specifier.operator, specifier.version)
        }
        minors = exact or allowed  # a release that the index does not know yet may be named
        return next(iter(minors)) if len(minors) == 1 else None

    @property
    def fit(self) -> Fit:
        return Fit(self.stable, self.minors, self.named or self.pinned)


def find_torch_user(package: Package, python: str | None, machine: int | None = None) -> TorchUser | None:
    """Return the package as a user of torch; None if it uses nothing of torch, and for torch itself.

    Files for other machines are left out (None: than the one that most of its files are for), and extension modules for
    other interpreters than `python` ("3.11").
    """
    if package.name == "torch":
        return None
    machine = machine or _machine(package)
    required = {}
    for path, file in sorted(package.binaries.items(), key=itemgetter(0)):
        elf = file.elf
        if elf and elf.machine == machine and not for_another_python(path, python):
            symbols = owned_symbols(elf.undefined)
            if symbols:
                required[path] = symbols
    if not required:
        return None
    for binary in package.binaries.values():
        if binary.elf and binary.elf.exported:
            required = {path: symbols - binary.elf.exported for path, symbols in required.items()}
    required = {path: symbols for path, symbols in required.items() if symbols}
    return TorchUser(package, python, machine, required) if required else None


def export_index(machine: int) -> ExportIndex:
    return torch_exports.shipped(MACHINES[machine]) if machine in MACHINES else ExportIndex()


def _machine(package: Package) -> int:
    """Return the e_machine of most of its files, of those that an index of torch's exports is for."""
    machines = (file.elf.machine for file in package.binaries.values() if file.elf)
    counts = Counter(machine for machine in machines if machine in MACHINES)
    return max(counts, key=lambda machine: (counts[machine], -machine), default=X86_64)


def _minor_in_name(text: str) -> str | None:
    match = _MINOR_IN_NAME.search(posixpath.basename(text))
    return f"2.{match[1]}" if match else None


def _requirements(package: Package, python: str | None) -> list[Requirement]:
    """Return the metadata's requirements on torch on Linux."""
    return [requirement for text in package.requires if (requirement := _requirement(text, python)) is not None]


def _requirement(text: str, python: str | None) -> Requirement | None:
    if len(text) > _LONGEST or required_name(text) != "torch":
        return None
    try:
        requirement = Requirement(text)
        environment = _LINUX | {"extra": ""} | ({"python_version": python} if python else {})
        return requirement if requirement.marker is None or requirement.marker.evaluate(environment) else None
    except (ValueError, RecursionError):  # only in a broken or hostile package
        return None


def _is_exact(operator: str, version: str) -> bool:
    """Return whether it names a minor: `==2.8.0`, `==2.8.*`, `~=2.8.0`, and not `==2.*` or `~=2.8`."""
    numbers = {"==": 2, "~=": 3}.get(operator)
    return numbers is not None and len(Version(version.removesuffix(".*")).release) >= numbers
