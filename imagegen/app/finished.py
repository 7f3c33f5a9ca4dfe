"""Record the images of finished builds, so that an unchanged build needs no build steps and no audit."""

from __future__ import annotations

import importlib.util
import os

from imagegen.app.session import Session
from imagegen.core.deferred import dataclass
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


@dataclass(frozen=True)
class FinishedBuild:
    """An image that this store built from a lock, and that passed the audit and the comparison with the record.

    `tags` are as `local_tags` returns them; `notes` are the messages of the audit and the comparison.
    """

    digest: str
    tags: tuple[str, str]
    notes: tuple[str, ...]


def find_finished(session: Session, cell: Cell, lock: Lock) -> FinishedBuild | None:
    """Return the build of the lock; None if the lock, the matrix or the code changed. The image may be gone."""
    finished: FinishedBuild | None = session.compiled.find("build", *_inputs(session, cell, lock))
    return finished


def keep_finished(session: Session, cell: Cell, lock: Lock, finished: FinishedBuild) -> None:
    """Record the build of a lock, unless the lock was not read from its file or has source builds."""
    session.compiled.keep("build", *_inputs(session, cell, lock), finished)


def _inputs(session: Session, cell: Cell, lock: Lock) -> tuple[str, tuple[str | None, ...]]:
    """Return the subject of the kept build, and the inputs of image and audit; an input is None if it is not known.

    Builds of earlier inputs are kept too, because a user may return to them.
    """
    compiles = any(environment.lock.builds for environment in lock.environments)
    inputs = None if compiles else session.digest_of_inputs(lock, cell)
    return f"{cell.id} {inputs}", (inputs, _codec())


def _codec() -> str:
    """Return the identity of the package that compresses layers: time and size of its file, without importing it."""
    spec = importlib.util.find_spec("zstandard")
    status = os.stat(spec.origin) if spec and spec.origin else None
    return f"{status.st_mtime_ns}.{status.st_size}" if status else ""
