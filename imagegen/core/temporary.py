"""Temporary files and directories, in the store's tmp/ and elsewhere, each locked by its maker's process.

Only the lock distinguishes a killed build's files from a running build's; the former are removed when a store is
opened, or another file is written in the same directory. Downloads (`part-...`, imagegen/core/net/client.py) stay: a
later run resumes them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen.core import stopping
from imagegen.core.errors import StoreError

if TYPE_CHECKING:
    from imagegen.core.progress import Progress

PART = "part-"
_PACE = 0.05  # seconds
UNFINISHED = ".imagegen-tmp-"  # outside of the store


def new_file(folder: Path, prefix: str) -> tuple[int, Path]:
    """Create a file, open for writing, locked until it is closed; return descriptor and path. Rename it first."""
    import tempfile  # late, here and below: a command that only reads writes no file

    while True:
        handle, name = tempfile.mkstemp(dir=folder, prefix=prefix)
        path = Path(name)
        with suppress(StoreError):  # without locks, files of killed processes stay
            flock(handle, fcntl.LOCK_EX, path)
        if names(path, handle):
            return handle, path
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
        with suppress(StoreError):
            flock(handle, fcntl.LOCK_EX, path)
        if names(path, handle):
            break
        os.close(handle)
    try:
        yield path
    finally:
        if stopping.is_stopped():
            from imagegen.core import programs  # late: few runs are stopped

            programs.remove(path)
        else:
            shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


@contextmanager
def temporary_directory(folder: Path | None = None) -> Iterator[Path]:
    """Yield a new locked directory in `folder`, or in the one for temporary files, which is removed at the end unless
    it was renamed.

    Directories of killed processes are removed first.
    """
    import tempfile

    folder = folder or Path(tempfile.gettempdir())
    clear(folder)
    with new_directory(folder, UNFINISHED) as path:
        yield path


@cache
def clear(folder: Path) -> None:
    """Remove the files and directories in `folder` that killed processes left unfinished, once in a process."""
    with suppress(OSError):  # a folder that cannot be read
        for path in folder.glob(f"{UNFINISHED}{'[a-z0-9_]' * 8}"):  # the names that tempfile gives
            remove(path)


def flock(handle: int, operation: int, path: Path) -> None:
    """Lock the open file at `path`. Raises StoreError if its file system has no locks; BlockingIOError with LOCK_NB."""
    try:
        fcntl.flock(handle, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        fix = "use a directory whose file system has locks, as local disks have: XDG_CACHE_HOME moves the store"
        raise StoreError(
            "a file cannot be locked", code="store-no-locks", where=str(path), why=error.strerror, fix=fix
        ) from error


@contextmanager
def locked(path: Path, waiting: tuple[Progress, str] | None = None) -> Iterator[None]:
    """Hold the lock of a file, which stays, between threads and processes; if another holds it, report `waiting`."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
        except BlockingIOError:
            if waiting:
                progress, message = waiting
                progress.say(message)
            _wait_for_lock(handle, path)
        yield
    finally:
        os.close(handle)


def _wait_for_lock(handle: int, path: Path) -> None:
    while True:
        stopping.check()
        with suppress(BlockingIOError):
            return flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
        time.sleep(_PACE)


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
