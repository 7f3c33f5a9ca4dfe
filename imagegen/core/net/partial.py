"""Local inputs of a client: files by file://, and the CA bundle."""

from __future__ import annotations

import fcntl
import hashlib
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from imagegen.core.errors import FetchError
from imagegen.core.net.answer import NotFoundError
from imagegen.core.store import Store, disk
from imagegen.core.store.disk import PART, names


def bundle(path: Path) -> str:
    """The CA bundle, a file or an OpenSSL directory. Raises FetchError when it is none."""
    try:
        place = {"capath" if path.is_dir() else "cafile": str(path)}
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**place)
    except OSError as error:  # ssl.SSLError is one
        raise FetchError(
            "the CA bundle cannot be read",
            code="fetch-ca-bundle-unreadable",
            where=str(path),
            why=error.strerror or str(error),
            fix="SSL_CERT_FILE, REQUESTS_CA_BUNDLE, PIP_CERT or pip's `cert` names it: a file of certificates in PEM",
        ) from error
    return str(path)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise NotFoundError(f"{path} does not exist or is no file")
        file = path.open("rb")
    except OSError as error:
        raise FetchError(
            f"{path} cannot be read", code="fetch-file-unreadable", why=os.strerror(error.errno or 0)
        ) from error
    with file:
        yield file


# A download in progress, under its expected sha256.
#
# It is in the store's `tmp/` as `part-<sha256>`, so that a later run resumes where a killed one stopped, and it gets
# its blob's name only when its bytes have that sha256. The file is locked while it is written: if two processes need
# the same download, one fetches it, and the other waits and finds the blob.

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

    Raises StoreError when the disk is full or read-only.
    """
    path = store.root / "tmp" / f"{PART}{sha256}"
    with store.explained(), _locked(path) as file:
        part = Partial(file, path, limit)
        try:
            yield part
            file.flush()
        except OSError as error:
            if disk.is_full(error):
                part.size = 0  # other files need the disk space more
            raise
        finally:
            if part.size == 0:
                path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous holder of the lock may have moved the file to its blob's name, or removed it.
            if names(path, file.fileno()):
                yield file
                return
