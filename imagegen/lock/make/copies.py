"""Files of the project that a cell copies into its image: read for a lock, and compared with one before a build.

The lock has the sha256 of each file, and the store its contents: a build takes the bytes that were locked, and an edit
makes the lock stale.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from imagegen.core import data
from imagegen.core.errors import LockError
from imagegen.core.image_format import PREFIX
from imagegen.core.store import Store
from imagegen.image.layers.support import ROOT
from imagegen.lock.model import CopiedFile, Lock, LockedCopy
from imagegen.spec.model import Cell, CopySource

_CHUNK = 1 << 20
_NAMED = 5  # files that an error names


def read(cell: Cell, store: Store) -> tuple[LockedCopy, ...]:
    """Return the cell's copies with the files that the project has now; their contents are written to the store.

    Raises LockError, with the line of the matrix, for a path that is missing, unreadable, not a regular file or outside
    of the project, and for two entries with one path.
    """
    copies = tuple(_read(source, store) for source in cell.copies)
    copied: set[str] = set()
    for copy, copy_source in zip(copies, cell.copies, strict=True):
        for file in copy.files:
            for path in (file.path, *map(str, PurePosixPath(file.path).parents)):
                if path in copied:
                    raise _refused(copy_source, f"another entry copies a file to {path}")
        copied |= {file.path for file in copy.files}
    return copies


def require_unchanged(lock: Lock, cell: Cell, store: Store, where: str) -> None:
    """Raise LockError if the project's files differ from the lock at the path `where`."""
    if not lock.copies:
        return
    then, now = (
        {file.path: file for copy in copies for file in copy.files} for copies in (lock.copies, read(cell, store))
    )
    if moved := sorted(path for path in then | now if then.get(path) != now.get(path)):
        omitted = f" and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
        raise LockError(
            f"the lock of {cell.id} is stale",
            code="lock-stale",
            where=where,
            why=f"these files of the project changed since then: {', '.join(moved[:_NAMED])}{omitted}",
            fix=f"`imagegen lock {cell.id}`",
        )


def _read(copy: CopySource, store: Store) -> LockedCopy:
    for reserved in (PREFIX, ROOT):
        if f"{copy.path}/".startswith(f"{reserved}/"):
            raise _refused(copy, f"only imagegen writes below {reserved}")
    try:
        files = tuple(sorted(_files(copy, store), key=lambda file: file.path))
    except OSError as error:
        raise _refused(copy, f"{error.filename or copy.file}: {error.strerror}") from error
    if not files:
        raise _refused(copy, f"the directory {copy.file} has no files")
    return LockedCopy(copy.path, copy.source, copy.because, files)


def _files(copy: CopySource, store: Store) -> Iterator[CopiedFile]:
    """Yield the file, or the files of the directory. Raises OSError."""
    data.require_within(copy.file, copy.top)
    if not copy.file.is_dir():
        yield _file(copy.file, copy.path, store)
        return
    for directory, names, files in os.walk(copy.file, onerror=_raise):
        links = [name for name in names if Path(directory, name).is_symlink()]
        for path in (Path(directory, name) for name in (*links, *files)):
            yield _file(path, f"{copy.path}/{path.relative_to(copy.file).as_posix()}", store)


def _file(path: Path, target: str, store: Store) -> CopiedFile:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link; copy its target", str(path))
    handle = os.open(path, flags)
    with os.fdopen(handle, "rb") as file, store.writer() as blob:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        size = 0
        while chunk := file.read(_CHUNK):
            size += blob.write(chunk)
        digest = blob.commit()
    return CopiedFile(target, "0755" if status.st_mode & stat.S_IXUSR else "0644", size, digest.removeprefix("sha256:"))


def _raise(error: OSError) -> None:
    raise error


def _refused(copy: CopySource, why: str) -> LockError:
    return LockError(f"{copy.source} cannot be copied", code="lock-copy-invalid", where=copy.where, why=why)
