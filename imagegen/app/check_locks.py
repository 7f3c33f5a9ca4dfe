"""Check locks that exist, without the imports of resolving and building."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen import lock
from imagegen.app.lock_files import LockFiles
from imagegen.core.errors import ErrorList, IncompatibleError, LockError
from imagegen.lock.file import LockErrors
from imagegen.lock.model import LOCAL, Lock
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.compare.difference import Change


@dataclass(frozen=True)
class LockedImage:
    """A cell's lock, whether the file changed, and the changes of packages from the lock that it starts from."""

    cell: Cell
    path: Path
    lock: Lock
    changed: bool
    changes: tuple[Change, ...] = ()


def check_locks(lock_files: LockFiles, cells: Sequence[Cell]) -> list[LockedImage]:
    """Return the locks of the cells that have one, and report the cells without.

    Raises LockError or IncompatibleError, after all were checked, if a lock is stale or edited or breaks a rule, or if
    no lock exists.
    """
    locked = [candidate for candidate in cells if lock_files.has(candidate)]
    fresh: list[LockedImage] = []
    errors: ErrorList[LockError | IncompatibleError] = ErrorList()
    for cell in locked or cells[:1]:
        try:
            fresh.append(LockedImage(cell, lock_files.path(cell), current_lock(lock_files, cell), changed=False))
            lock_files.project.progress.say(f"{cell.id}: fresh")
        except (LockError, IncompatibleError) as error:
            errors.append(error)
    if locked and len(locked) < len(cells):
        lock_files.project.progress.say(
            f"without a lock: {', '.join(candidate.id for candidate in cells if candidate not in locked)}"
        )
    if len(errors) > 1:
        raise LockErrors(errors)
    if errors:
        raise errors[0]
    return fresh


def current_lock(lock_files: LockFiles, cell: Cell) -> Lock:
    """Return the cell's lock. Raises LockError or IncompatibleError where it is missing, stale or edited."""
    locked = lock_files.fresh(cell)
    require_unchanged_sources(lock_files, locked, cell)
    return locked


def require_unchanged_sources(lock_files: LockFiles, locked: Lock, cell: Cell) -> None:
    """Raise LockError if sources on this disk changed, which no input of the lock covers."""
    require_unchanged_copies(lock_files, cell, locked)
    for part, environment_lock in locked.by_cell(cell):
        if local := [
            build for build in environment_lock.builds if build.source.index == LOCAL
        ]:  # else no store is needed
            lock.require_unchanged(local, part.recipes, lock_files.project.store)


def require_unchanged_copies(lock_files: LockFiles, cell: Cell, locked: Lock) -> None:
    """Raise LockError if copied files or patches differ from the lock's; else their contents are in the store."""
    for part, environment_lock in locked.by_cell(cell):
        where = str(lock_files.path(part))
        if environment_lock.copies:  # else no store is needed
            from imagegen.lock.make import copies  # late, because it imports the writers of layers

            copies.require_unchanged(environment_lock, part, lock_files.project.store, where)
        if any(wheel.patches for wheel in environment_lock.wheels):
            from imagegen.lock.make import patches  # late, as above

            patches.require_unchanged(environment_lock, part, lock_files.project.store, where)
