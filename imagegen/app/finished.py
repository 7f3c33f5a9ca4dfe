"""Finished builds: the images that locks gave, so that an unchanged build needs nothing of what builds and audits."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from imagegen.app.session import Session
from imagegen.core.compiled import digest_of
from imagegen.core.store.cache import Cache
from imagegen.core.types import Digest
from imagegen.plan.lock.environments import environments
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell


@dataclass(frozen=True)
class FinishedBuild:
    """An image that this store built of a lock, and that passed the audit and the comparison with the lock's record.

    `tags` are as of `local_tags`; `notes` is what the audit and the comparison printed.
    """

    digest: Digest
    tags: tuple[str, str]
    notes: tuple[str, ...]


_BUILDS = Cache("build", FinishedBuild)


def find_finished(session: Session, cell: Cell, lock: Lock) -> FinishedBuild | None:
    """Return the build of the lock; None where the lock, the matrix or the code is another. The image may be gone."""
    key = _key(session, cell, lock)
    return _BUILDS.get(session.store, key) if key else None


def keep_finished(session: Session, cell: Cell, lock: Lock, finished: FinishedBuild) -> None:
    """Record the build of a lock; of one that was not read from its file, or has source builds, none is kept."""
    if key := _key(session, cell, lock):
        _BUILDS.put(session.store, key, finished)


def _key(session: Session, cell: Cell, lock: Lock) -> str | None:
    """Return the digest of all that decides image and audit; None where it is not known, or more than that decides."""
    compiles = any(each.lock.builds for each in environments(lock))
    inputs = None if compiles else session.digest_of_inputs(lock, cell)
    return f"sha256:{digest_of(inputs, cell.id, _codec())}" if inputs else None


def _codec() -> str:
    """Return the identity of the package that compresses layers, by time and size of its file: it is not imported."""
    found = importlib.util.find_spec("zstandard")
    status = os.stat(found.origin) if found and found.origin else None
    return f"{status.st_mtime_ns}.{status.st_size}" if status else ""
