"""The previous lock of a cell, and the parts of it that the next lock keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name

from imagegen.core.errors import LockError
from imagegen.image import base
from imagegen.lock.artifacts import locked_files, packages
from imagegen.lock.foundation import LockedPackages
from imagegen.lock.freshness import BASE
from imagegen.lock.make.options import LockOptions, parse_cutoff
from imagegen.lock.model import LOCAL, Lock, LockedBase, LockedBuild, LockedWheel
from imagegen.spec.model import Cell


@dataclass(frozen=True)
class Previous:
    """The previous lock of a cell, if any, and the options that decide which parts of it the next lock keeps.

    The next lock is resolved for the time `cutoff` (RFC 3339); `versions` stay if they can, by package.
    """

    lock: Lock | None
    options: LockOptions
    cutoff: str
    versions: Mapping[str, str]

    @classmethod
    def of(cls, lock: Lock | None, options: LockOptions) -> Previous:
        """Raise LockError for a malformed or future cutoff, and for an upgraded package that the lock has not."""
        keeps_cutoff = lock and options.as_of is None and not options.upgrade and not options.packages
        cutoff = lock.as_of if lock and keeps_cutoff else parse_cutoff(options.as_of)
        versions = {} if options.upgrade or lock is None else _versions(lock, options.packages)
        return cls(lock, options, cutoff, versions)

    def base(self, cell: Cell) -> LockedBase | None:
        """Return the base, while its entry in the matrix is the same; fields that repeat the matrix come from there."""
        lock = None if self._upgrades_base else self.lock
        if lock is None or lock.inputs.get("base") != cell.inputs.get("base"):
            return None
        return replace(lock.base, **{name: getattr(cell.base, name) for name in BASE})  # manual edits are dropped

    def added_packages(self, cell: Cell, locked_base: LockedBase) -> LockedPackages | None:
        """Return the packages above the base, while base and requested packages are the same."""
        lock = None if self._upgrades_base else self.lock
        if lock is None or lock.added is None or base.key(lock.base) != base.key(locked_base):
            return None
        return lock.added if dict(lock.added.requested) == dict(cell.packages) else None

    def bytecode_base(self, locked_base: LockedBase) -> LockedBase | None:
        """Return the base that compiles byte-code, while the base is the same."""
        return self.lock.bytecode_base if self.lock and self.lock.base == locked_base else None

    def uv(self, version: str) -> LockedWheel | None:
        """Return the wheel of uv, if it is of this version."""
        return self.lock.uv if self.lock and self.lock.uv.version == version else None

    @property
    def own_wheels(self) -> dict[str, LockedWheel]:
        """The wheels of the project's own packages, by package; none if packages are upgraded."""
        if self.lock is None or self.options.upgrade or self.options.packages:
            return {}
        return {wheel.name: wheel for wheel in self.lock.wheels if wheel.file.index == LOCAL}

    def wheels_of_sdists(self, locked_base: LockedBase) -> dict[tuple[str, str], LockedWheel]:
        """Return the wheels made from sdists, by name and version, if they are trusted and the base is the same."""
        lock = self.lock if self.options.trust_previous_wheels else None
        if lock is None or base.key(lock.base) != base.key(locked_base):
            return {}
        return {(wheel.name, wheel.version): wheel for wheel in lock.wheels if wheel.sdist}

    def compiled_packages(self, draft: Lock) -> dict[str, LockedWheel | LockedBuild]:
        """Return the compiled packages, by package: builds, and chosen wheels if torch and the GPUs are the same.

        So an unreachable source of wheels turns no wheel into a build. `draft` is the next lock without them.
        """
        if self.lock is None:
            return {}
        is_same = _torch(self.lock) == _torch(draft) and self.lock.inputs.get("gpus") == draft.inputs.get("gpus")
        return {
            package.name: package
            for package in self.lock.packages
            if package.name in self.versions and (isinstance(package, LockedBuild) or (is_same and package.choice))
        }

    def file_sizes(self) -> dict[str, int]:
        """Return the sizes in bytes that the lock names, by sha256."""
        files = locked_files(packages(self.lock)) if self.lock else {}
        return {file.sha256: file.size for file in files.values() if file.size is not None}

    @property
    def _upgrades_base(self) -> bool:
        return self.options.upgrade or self.options.upgrade_base


def _versions(lock: Lock, upgraded: Sequence[str]) -> dict[str, str]:
    """Return the versions that stay, by package. Raises LockError for an upgraded package that the lock has not."""
    names = {canonicalize_name(name) for name in upgraded}
    unknown = names - {package.name for package in lock.packages}
    if unknown:
        raise LockError(
            f"the lock has no {', '.join(sorted(unknown))}",
            code="lock-unknown-package",
            fix="upgrade a package that it has",
        )
    return {package.name: package.version for package in lock.packages if package.name not in names}


def _torch(lock: Lock) -> str | None:
    """Return the sha256 of torch's wheel; None without one."""
    return next((wheel.file.sha256 for wheel in lock.wheels if wheel.name == "torch"), None)
