"""Failures of the disk under the store: full, read-only, owned by another user, damaged, without locks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imagegen.core.errors import StoreError
from imagegen.core.progress import human

FULL = (errno.ENOSPC, errno.EDQUOT)
LIMITS = (errno.EMFILE, errno.ENFILE)  # of open files
_OPEN_FILES = 1024
# Errors of a disk, a network file system or a limit of the machine, not of a wrong path or a fault of imagegen.
_SYSTEM = frozenset((
    *FULL, *LIMITS, errno.EIO, errno.ESTALE, errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY, errno.ENOLCK,
    errno.ENOMEM, errno.ENXIO, errno.ENODEV, errno.EUCLEAN, errno.EREMOTEIO,
    errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.ETXTBSY,
))  # fmt: skip
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Return whether the error means a full disk or an exhausted quota."""
    return error.errno in FULL


def require_not_full(stderr: str) -> None:
    """Raise OSError if the error output of a program says that the disk is full."""
    if any(os.strerror(number) in stderr for number in FULL):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def free(path: Path) -> int:
    """Return how many bytes this user may still write there, or in the nearest parent directory that exists."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


@contextmanager
def explained(path: Path, what: str, fix: str | None, needed: int = 0, remedy: str | None = None) -> Iterator[None]:
    """Turn errors of the disk into StoreErrors about `what`, which lies at `place`; `remedy` is the fix if it is full.

    Errors of connections, and of files elsewhere that have another cause than the disk, pass.
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise full(path, what, remedy or fix, needed) from error
        if error.errno in _CLOSED:
            reason = os.strerror(error.errno)
            raise StoreError(
                f"{what} cannot be written", code="store-unwritable", where=str(path), why=reason, fix=fix
            ) from error
        if error.errno not in errno.errorcode or isinstance(error, ConnectionError | TimeoutError):
            raise
        is_inside = _path(error, path).is_relative_to(path)
        if explanation := failure(error, path, what, fix) if is_inside else system_failure(error):
            raise explanation from error
        raise


def system_failure(error: OSError) -> StoreError | None:
    """Return the error about a file that the state of this machine causes; None if it has another cause."""
    fix = "correct that, and run the same command again"
    return failure(error, Path("this machine"), "a file", fix) if error.errno in _SYSTEM else None


def failure(error: OSError, path: Path, what: str, fix: str | None) -> StoreError:
    """Return the error for a failed operation on a file of `what`, which lies at `place`."""
    if error.errno in LIMITS:
        fix = f"allow more open files: `ulimit -n {_OPEN_FILES}`"
    why = error.strerror or os.strerror(error.errno or 0)
    return StoreError(f"{what} cannot be used", code="store-unusable", where=str(_path(error, path)), why=why, fix=fix)


def _path(error: OSError, default: Path) -> Path:
    """Return the path in the error, else `place`: an operation on an open file names none."""
    return Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else default


def require(path: Path, what: str, fix: str | None, needed: int) -> None:
    """Raise StoreError unless `needed` bytes are free there."""
    if free(path) < needed:
        raise full(path, what, fix, needed)


def full(path: Path, what: str, fix: str | None, needed: int = 0) -> StoreError:
    """Return the error for a full disk; `needed` is the estimated size in bytes."""
    why = f"{human(free(path))} are free there"
    if needed:
        why += f", and this takes about {human(needed)} in all"
    return StoreError(f"the disk of {what} is full", code="store-disk-full", where=str(path), why=why, fix=fix)


@contextmanager
def made_for(output: Path) -> Iterator[None]:
    """Make the directory that will hold `output`; if the block fails, remove the new directories that are empty."""
    missing = [folder for folder in output.parents if not folder.exists()]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise
