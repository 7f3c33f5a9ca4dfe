"""Find images that were built before, so that an unchanged build needs no build steps and no audit."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.lock_files import LockFiles
from imagegen.app.project import ProjectContext
from imagegen.core.deferred import dataclass
from imagegen.core.store import images
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.engine import Engine


@dataclass(frozen=True)
class FinishedBuild:
    """An image that this store built from a lock, and that passed the audit and the comparison with the record.

    `notes` are the messages of the audit and the comparison.
    """

    digest: str
    notes: tuple[str, ...]


def find_finished(
    lock_files: LockFiles, cell: Cell, lock: Lock, engine: Engine | None, *, audit: bool
) -> FinishedBuild | None:
    """Return the build of the lock if the engine has its image, or for None the store; print its notes.

    None if the lock, the matrix or the code changed, and without `audit`, since a finished build has passed one.
    Raises LockError if copied files or patches changed.
    """
    require_unchanged_copies(lock_files, cell, lock)
    finished: FinishedBuild | None = (
        lock_files.project.results.find("build", *_inputs(lock_files, cell, lock)) if audit else None
    )
    if finished is None or not _has_image(lock_files.project, lock, finished, engine):
        return None
    for note in finished.notes:
        lock_files.project.progress.say(note)
    return finished


def _has_image(project: ProjectContext, lock: Lock, finished: FinishedBuild, engine: Engine | None) -> bool:
    if engine:
        return engine.image_digest(local_tags(lock)[1]) == finished.digest
    manifest = images.find_whole(project.store, finished.digest)
    if manifest and images.images(project.store).get(lock.cell) != manifest.digest:
        images.keep(project.store, lock.cell, manifest.digest, manifest.size)
    return manifest is not None


def keep_finished(lock_files: LockFiles, cell: Cell, lock: Lock, finished: FinishedBuild) -> None:
    """Record the build of a lock, unless the lock was not read from its file or has source builds."""
    lock_files.project.results.keep("build", *_inputs(lock_files, cell, lock), finished)


def _inputs(lock_files: LockFiles, cell: Cell, lock: Lock) -> tuple[str, tuple[str | None, ...]]:
    """Return the subject of the kept build, and the inputs of image and audit; an input is None if it is not known.

    Builds of earlier inputs are kept too, because a user may return to them.
    """
    compiles = any(environment.lock.builds for environment in lock.environments)
    inputs = None if compiles else lock_files.digest_of_inputs(lock, cell)
    return f"{cell.id} {inputs}", (inputs, _codec())


def _codec() -> str:
    """Return the identity of the package that compresses layers: time and size of its file, without importing it."""
    spec = importlib.util.find_spec("zstandard")
    status = os.stat(spec.origin) if spec and spec.origin else None
    return f"{status.st_mtime_ns}.{status.st_size}" if status else ""
