"""A download in progress, under its expected sha256.

It is in the store's `tmp/` as `part-<sha256>`, so that a later run resumes where a killed one stopped, and it gets
its blob's name only when its bytes have that sha256. The file is locked while it is written: if two processes need
the same download, one fetches it, and the other waits and finds the blob.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from imagegen.core.store import Store
from imagegen.core.temporary import PART, flock, names

_CHUNK = 1 << 20


class Partial:
    """Bytes 0 to `size` of a download. Use through `partial`."""

    def __init__(self, file: BinaryIO, path: Path, limit: int) -> None:
        self._file, self._path = file, path
        self._hash = hashlib.sha256()
        self.size = 0
        self.pieces = 0  # answers that its bytes came from, in this run
        if os.fstat(file.fileno()).st_size > limit:
            self.clear()
        while chunk := file.read(_CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)
            self.pieces = 2

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def append(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def clear(self) -> None:
        """Start again from the first byte."""
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.size = self.pieces = 0

    def commit(self, store: Store) -> str:
        """Make the bytes a blob of the store and return its digest."""
        digest = f"sha256:{self.sha256}"
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._path, store.path(digest))
        os.fchmod(self._file.fileno(), 0o444)  # not before: a part that is left must be writable
        return digest


@contextmanager
def partial(store: Store, sha256: str, limit: int) -> Iterator[Partial]:
    """Yield the existing part of the download, locked; a part longer than `limit` bytes is emptied.

    A part that is left stays for a later run, unless this or another file did not fit on the store's disk, because the
    others need the space more. Raises StoreError when the disk is full or read-only.
    """
    path = store.root / "tmp" / f"{PART}{sha256}"
    with store.explained(), _locked(path) as file:
        part = Partial(file, path, limit)
        try:
            with store.explained():  # first, because it detects a full disk
                yield part
                file.flush()
        except BaseException:
            if store.full:
                part.size = 0
            raise
        finally:
            if part.size == 0:
                path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
            flock(file.fileno(), fcntl.LOCK_EX, path)
            # The previous holder of the lock may have moved the file to its blob's name, or removed it.
            if names(path, file.fileno()):
                yield file
                return
