"""Failures of the disk under the store: full, read-only, owned by another user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagegen.core.errors import StoreError
from imagegen.core.progress import human

FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Return whether the error means a full disk or an exhausted quota."""
    return error.errno in FULL


def free(place: Path) -> int:
    """Return how many bytes this user may still write there, or in the nearest parent directory that exists."""
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


@contextmanager
def explained(place: Path, what: str, fix: str | None, needed: int = 0) -> Iterator[None]:
    """Turn errors of a full or read-only disk into StoreErrors about `what`, which lies at `place`."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise full(place, what, fix, needed) from error
        if error.errno in _CLOSED:
            reason = os.strerror(error.errno)
            raise StoreError(
                f"{what} cannot be written", code="store-unwritable", where=str(place), why=reason, fix=fix
            ) from error
        raise


def require(place: Path, what: str, fix: str | None, needed: int) -> None:
    """Raise StoreError unless `needed` bytes are free there."""
    if free(place) < needed:
        raise full(place, what, fix, needed)


def full(place: Path, what: str, fix: str | None, needed: int = 0) -> StoreError:
    """Return the error for a full disk; `needed` is the estimate in bytes of what does not fit."""
    why = f"{human(free(place))} are free there"
    if needed:
        why += f", and this takes about {human(needed)} in all"
    return StoreError(f"the disk of {what} is full", code="store-disk-full", where=str(place), why=why, fix=fix)
