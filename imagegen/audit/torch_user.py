"""The symbols that a package's extensions need of torch, the releases that have them, and the one it names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.audit import torch_exports
from imagegen.audit.model import Package
from imagegen.audit.tags import for_another_python
from imagegen.audit.torch_exports import is_shim, minor, owned

X86_64 = 62  # e_machine; the index is made of wheels for it

# "2.8.0.post2+cu12torch2.8cxx11abitrue", "2.1.2+pt28cu128", "libtorch_c_dlpack_addon_torch29-cuda.so"
_NAMED = re.compile(r"(?:torch|(?<![a-z])pt)[-_.]?2[._]?(\d{1,2})(?!\d)", re.IGNORECASE)
_LIBRARY = "_ZN5torch7LibraryC"  # constructors of torch::Library, which TORCH_LIBRARY runs
_NONE_SO_OLD, _NONE_SO_NEW = "0.1", "999.0"  # versions of torch that a requirement without a bound lets in
_LONGEST = 1000  # characters of a requirement; a number of more than 4,300 digits is an error of Python's
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}


@dataclass(frozen=True)
class Fit:
    """The torch that a package was built for, by its symbols, its version and its metadata."""

    stable: bool  # it uses nothing of torch but the C names of the stable ABI
    minors: tuple[str, ...]  # "2.8", "2.9": those of the index that export all that it wants, oldest first
    declared: str | None  # the one minor that its version or its metadata names


@dataclass(frozen=True)
class User:
    """A package that uses torch: for each of its files the symbols that it requires and the package does not define."""

    package: Package
    python: str | None
    required: Mapping[str, frozenset[str]]

    def on(self, one_minor: str | None) -> Mapping[str, frozenset[str]]:
        """Return the needed symbols on a minor of torch: a package may bring one build of a file for each of several.

        On one whose version cannot be read (None), all of it.
        """
        if one_minor is None:
            return self.required
        return {path: symbols for path, symbols in self.required.items() if _named(path) in (None, one_minor)}

    @cached_property
    def stable(self) -> bool:
        return all(is_shim(symbol) for symbols in self.required.values() for symbol in symbols)

    @cached_property
    def registers(self) -> bool:
        """Return whether it registers operators, as it is loaded, in objects whose layout moves with torch's minor
        release.
        """
        return any(symbol.startswith(_LIBRARY) for symbols in self.required.values() for symbol in symbols)

    @cached_property
    def minors(self) -> tuple[str, ...]:
        """Return the minors of the index that export all needed symbols."""
        return tuple(dict.fromkeys(minor(release) for release, lacks in self.lacks.items() if lacks == frozenset()))

    @cached_property
    def lacks(self) -> Mapping[str, frozenset[str] | None]:
        """The missing symbols by release of the index; None where the package has no files for its minor."""
        index = torch_exports.shipped()
        on = {release: self.on(minor(release)) for release in index.releases}
        return {
            release: index.lacks(release, frozenset().union(*files.values())) if files else None
            for release, files in on.items()
        }

    @cached_property
    def named(self) -> str | None:
        """The torch minor in the version's local label, which the package's builder sets."""
        label = self.package.version.partition("+")[2]
        return _named(label)

    @cached_property
    def requirement(self) -> str | None:
        """Return the metadata's requirement on torch on Linux: "torch==2.8.0"; None without one."""
        found = sorted(str(each.specifier) for each in _requirements(self.package, self.python))
        return "torch" + ",".join(filter(None, found)) if found else None

    @cached_property
    def pinned(self) -> str | None:
        """The one minor that the metadata lets in."""
        found = _requirements(self.package, self.python)
        releases = (_NONE_SO_OLD, *torch_exports.shipped().releases, _NONE_SO_NEW)
        let_in = {minor(each) for each in releases if all(each in one.specifier for one in found)}
        exact = {
            minor(each.version.removesuffix(".*"))
            for one in found
            for each in one.specifier
            if _is_exact(each.operator, each.version)
        }
        one = exact or let_in  # a release that the index does not know yet may be named
        return next(iter(one)) if len(one) == 1 else None

    @property
    def fit(self) -> Fit:
        return Fit(self.stable, self.minors, self.named or self.pinned)


def user(package: Package, python: str | None, machine: int = X86_64) -> User | None:
    """Return the package as a user of torch; None if it uses nothing of torch, and for torch itself.

    Files for other machines are left out, and extension modules for other interpreters than `python` ("3.11").
    """
    if package.name == "torch":
        return None
    required = {}
    for path, file in sorted(package.files.items()):
        elf = file.elf
        if elf and elf.machine == machine and not for_another_python(path, python):
            symbols = _owned(elf.undefined)
            if symbols:
                required[path] = symbols
    if not required:
        return None
    own = frozenset().union(*(file.elf.exported for file in package.files.values() if file.elf))
    required = {path: symbols - own for path, symbols in required.items() if symbols - own}
    return User(package, python, required) if required else None


@lru_cache(1 << 14)  # the check asks, and the table of what packages run with
def _owned(symbols: frozenset[str]) -> frozenset[str]:
    return frozenset(filter(owned, symbols))


def _named(text: str) -> str | None:
    match = _NAMED.search(posixpath.basename(text))
    return f"2.{match[1]}" if match else None


def _requirements(package: Package, python: str | None) -> list[Requirement]:
    """Return the metadata's requirements on torch on Linux."""
    return [one for text in package.requires if (one := _requirement(text, python)) is not None]


def _requirement(text: str, python: str | None) -> Requirement | None:
    if len(text) > _LONGEST:
        return None
    try:
        found = Requirement(text)
        if canonicalize_name(found.name) != "torch":
            return None
        place = _LINUX | {"extra": ""} | ({"python_version": python} if python else {})
        return found if found.marker is None or found.marker.evaluate(place) else None
    except (ValueError, RecursionError):  # what only a broken or hostile package says
        return None


def _is_exact(operator: str, version: str) -> bool:
    """Return whether it names a minor: `==2.8.0`, `==2.8.*`, `~=2.8.0`, and not `==2.*` or `~=2.8`."""
    numbers = {"==": 2, "~=": 3}.get(operator)
    return numbers is not None and len(Version(version.removesuffix(".*")).release) >= numbers
