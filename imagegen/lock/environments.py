"""Several Python environments in one image. The locks of their cells are joined into one that a build can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from packaging.version import Version

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.image_format import PREFIX
from imagegen.core.progress import human
from imagegen.core.validation import field_info
from imagegen.lock.model import Lock, LockedCopy, LockedEnvironment, LockedGpus, Record
from imagegen.lock.tables import LockTable
from imagegen.lock.wheels import LockedWheel
from imagegen.spec.model import Cell, CellEnvironment
from imagegen.spec.prefix import VENVS

_NAMED = 3  # wheels in a sentence


@dataclass(frozen=True)
class EnvironmentRow(LockTable):
    """An environment in the lock file of its image; `lock` is the inputs hash of the cell's own lock."""

    name: t.Word
    cell: t.Word
    because: t.Line
    lock: t.Digest


@dataclass(frozen=True, kw_only=True)
class CombinedFile(LockTable):
    """A lock file of an image with several environments."""

    cell: t.Word
    image: t.Word
    environments: Annotated[tuple[EnvironmentRow, ...], field_info("environment")]  # the default one first
    record: Record | None = None


@dataclass(frozen=True, kw_only=True)
class AttachedFile(CombinedFile):
    """A lock of an image with several environments, with the locks of their cells; it is attached to the image."""

    locks: Annotated[tuple[Lock, ...], field_info("locked")]  # without records, in the order of `environments`


def locked_environments(
    rows: Sequence[CellEnvironment | EnvironmentRow], locks: Sequence[Lock]
) -> tuple[LockedEnvironment, ...]:
    """Return the environments that `rows` name, with the locks of their cells in the same order."""
    prefixes = [PREFIX, *(f"{VENVS}/{row.name}" for row in rows[1:])]
    return tuple(
        LockedEnvironment(row.name, row.because, prefix, lock)
        for row, prefix, lock in zip(rows, prefixes, locks, strict=True)
    )


def join(cell: Cell, file: CombinedFile, locks: Sequence[Lock]) -> Lock:
    """Return the lock of a cell with several environments, from its file and the locks of their cells, in their order.

    `moved` names the environments whose row in the file differs from cell and lock, or that only the file has.
    """
    from imagegen.lock.file import row_of  # late, since file.py imports this module

    locked = locked_environments(cell.environments, locks)
    rows = {row.name: row for row in file.environments}
    moved = [environment.name for environment in locked if rows.pop(environment.name, None) != row_of(environment)]
    if not moved and [environment.name for environment in locked] != [row.name for row in file.environments]:
        moved = [locked[0].name]  # another environment is the default
    return combine(cell.id, cell.image, locked, file.record, tuple(sorted({*moved, *rows})))


def combine(
    cell: str, image: str, locked: Sequence[LockedEnvironment], record: Record | None, moved: tuple[str, ...] = ()
) -> Lock:
    """Join the locks of environments, of which the default one is the first."""
    locks = [environment.lock for environment in locked]
    return replace(
        locks[0],
        cell=cell,
        image=image,
        as_of=max(lock.as_of for lock in locks),
        copies=_copies(locks),
        gpu=_gpus(locks),
        record=record,
        several=tuple(locked),
        moved=moved,
    )


def with_locks(lock: Lock, locks: Sequence[Lock]) -> Lock:
    """Return the lock with other locks of its environments, in their order; the only one where it is of one."""
    if not lock.has_several:
        return locks[0]
    if all(environment.lock is other for environment, other in zip(lock.environments, locks, strict=True)):
        return lock
    changed = [replace(environment, lock=other) for environment, other in zip(lock.environments, locks, strict=True)]
    return combine(lock.cell, lock.image, changed, lock.record, lock.moved)


def _copies(locks: Sequence[Lock]) -> tuple[LockedCopy, ...]:
    copies = {copy.path: copy for lock in reversed(locks) for copy in lock.copies}
    return tuple(copies[path] for path in sorted(copies))


def _gpus(locks: Sequence[Lock]) -> LockedGpus | None:
    """Return the architectures that all environments are for, and the newest of the oldest drivers."""
    gpus = [lock.gpu for lock in locks if lock.gpu]
    if not gpus:
        return None
    common = [
        capability for capability in gpus[0].capabilities if all(capability in other.capabilities for other in gpus)
    ]
    drivers = [gpu.driver for gpu in gpus if gpu.driver]
    return LockedGpus(tuple(common), max(drivers, key=Version, default=None))


@dataclass(frozen=True)
class SharedWheels:
    """The bytes of wheels of an image with several environments, and of its largest environment."""

    total: int  # each wheel once
    largest: int
    cell: str  # the largest
    differing: tuple[LockedWheel, ...]  # wheels that not all environments have, the largest first

    @property
    def ratio(self) -> float:
        return self.total / self.largest if self.largest else 1.0

    @property
    def sentence(self) -> str:
        """State the ratio and the wheels that make most of it."""
        some = [f"{wheel.name} {wheel.version} ({human(wheel.file.estimate)})" for wheel in self.differing[:_NAMED]]
        omitted = f" and {len(self.differing) - _NAMED} more" if len(self.differing) > _NAMED else ""
        differing = f"; not all environments have {', '.join(some)}{omitted}" if some else ""
        return f"wheels of {human(self.total)}, {self.ratio:.2f} times the wheels of {self.cell}{differing}"


def shared_wheels(lock: Lock) -> SharedWheels:
    """Compare the wheels of all environments with the wheels of the largest one."""
    wheels_by_environment = {
        environment.name: {wheel.file.digest: wheel for wheel in environment.lock.wheels}
        for environment in lock.environments
    }
    sizes = {
        name: sum(wheel.file.estimate for wheel in wheels.values()) for name, wheels in wheels_by_environment.items()
    }
    largest = max(lock.environments, key=lambda environment: sizes[environment.name])
    wheels_by_digest = {digest: wheel for wheels in wheels_by_environment.values() for digest, wheel in wheels.items()}
    some = [
        wheel
        for digest, wheel in wheels_by_digest.items()
        if not all(digest in wheels for wheels in wheels_by_environment.values())
    ]
    differing = tuple(sorted(some, key=lambda wheel: (-wheel.file.estimate, wheel.name, wheel.version)))
    total = sum(wheel.file.estimate for wheel in wheels_by_digest.values())
    return SharedWheels(total, sizes[largest.name], largest.lock.cell, differing)
