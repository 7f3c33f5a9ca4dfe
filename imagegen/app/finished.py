"""Finished builds: the images that locks gave, so that an unchanged build needs nothing of what builds and audits."""

from __future__ import annotations

import importlib.util
import os

from imagegen.app.session import Session
from imagegen.core.deferred import dataclass
from imagegen.plan.lock.environments import environments
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell


@dataclass(frozen=True)
class FinishedBuild:
    """An image that this store built of a lock, and that passed the audit and the comparison with the lock's record.

    `tags` are as of `local_tags`; `notes` is what the audit and the comparison printed.
    """

    digest: str
    tags: tuple[str, str]
    notes: tuple[str, ...]


def find_finished(session: Session, cell: Cell, lock: Lock) -> FinishedBuild | None:
    """Return the build of the lock; None where the lock, the matrix or the code is another. The image may be gone."""
    found: FinishedBuild | None = session.compiled.find("build", *_inputs(session, cell, lock))
    return found


def keep_finished(session: Session, cell: Cell, lock: Lock, finished: FinishedBuild) -> None:
    """Record the build of a lock; of one that was not read from its file, or has source builds, none is kept."""
    session.compiled.keep("build", *_inputs(session, cell, lock), finished)


def _inputs(session: Session, cell: Cell, lock: Lock) -> tuple[str, tuple[str | None, ...]]:
    """Return the subject of the kept build, and all that decides image and audit: None among it where that is not
    known. Builds of earlier inputs are kept too: a user may come back to them.
    """
    compiles = any(environment.lock.builds for environment in environments(lock))
    inputs = None if compiles else session.digest_of_inputs(lock, cell)
    return f"{cell.id} {inputs}", (inputs, _codec())


def _codec() -> str:
    """Return the identity of the package that compresses layers, by time and size of its file: it is not imported."""
    found = importlib.util.find_spec("zstandard")
    status = os.stat(found.origin) if found and found.origin else None
    return f"{status.st_mtime_ns}.{status.st_size}" if status else ""
