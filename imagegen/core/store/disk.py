"""Failures of the disk under the store: full, read-only, owned by another user."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


# Temporary files and directories in the store's tmp/, each locked by its maker's process.
#
# The lock alone distinguishes those of a killed build from those of a running one; the former are removed when a
# store is opened. Downloads (`part-...`, imagegen/core/net/answer.py) stay: a later run resumes them.

PART = "part-"


def new_file(folder: Path, prefix: str) -> tuple[int, Path]:
    """Create a file, open for writing and locked until it is closed; return descriptor and path. Rename it before
    closing.
    """
    import tempfile  # late, here and below: a command that only reads writes no file

    while True:
        handle, name = tempfile.mkstemp(dir=folder, prefix=prefix)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if names(Path(name), handle):
            return handle, Path(name)
        os.close(handle)  # swept away before it was locked


@contextmanager
def new_directory(folder: Path, prefix: str) -> Iterator[Path]:
    """Yield a new locked directory, which is removed at the end unless it was renamed."""
    import shutil
    import tempfile

    while True:
        path = Path(tempfile.mkdtemp(dir=folder, prefix=prefix))
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # swept away before it was opened
            continue
        fcntl.flock(handle, fcntl.LOCK_EX)
        if names(path, handle):
            break
        os.close(handle)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def names(path: Path, handle: int) -> bool:
    """Return whether the path still leads to the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def sweep(folder: Path) -> None:
    """Remove all temporary files without a living owner, except downloads."""
    for path in folder.iterdir():
        if not path.name.startswith(PART):
            remove(path)


def remove(path: Path) -> bool:
    """Remove a file or a directory of tmp/ unless its maker lives; whether it is gone now."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)  # a pipe must not block
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                import shutil

                shutil.rmtree(path)
            else:
                path.unlink()
        finally:
            os.close(handle)
    return not path.exists()
