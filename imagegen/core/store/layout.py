"""The store: a content-addressed OCI image layout, shared by concurrent builds.

Source: OCI image-spec v1.1, image-layout.md. Next to the layout's own entries there are `records/` (cached results by
key of their inputs), `rootfs/` (unpacked bases, remade when missing), `tmp/` and `locks/`.

Writers write to a temporary name, fsync, and rename; a killed build leaves nothing that a later one would trust.
Directories are not synced: after a power failure a rename may be undone, and the file is then made again, because
readers of a record or a name check that the blob exists. Readers verify: `open` checks the digest of every byte that it
returns.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from imagegen.core import stopping, temporary
from imagegen.core.errors import StoreError
from imagegen.core.store import disk
from imagegen.oci.documents import is_digest
from imagegen.oci.layout import BLOBS, INDEX_FILE, LAYOUT_FILE, LAYOUT_VERSION, blob_name

if TYPE_CHECKING:
    from imagegen.core.progress import Progress

_CHUNK = 1 << 20
_SECOND = 10**9  # nanoseconds
_FIX = "set XDG_CACHE_HOME to a directory of yours on another disk"
_REMEDY = f"`imagegen store gc`, or {_FIX}"


def _mark(digest: str) -> int:
    """Return the nanoseconds of the modification time of a blob whose bytes were verified, as a fraction of a second.

    Any program that writes into the file sets another time. Where a file system keeps no such fractions, blobs are
    verified each time.
    """
    return int(digest.removeprefix("sha256:")[:8], 16) % _SECOND


class DamagedError(StoreError):
    """A blob's bytes are not its digest's."""

    code = "store-damaged"


class Store:
    """Blobs by digest, and the records of `Cache`. Raises StoreError for damage, a full disk, a read-only store.

    Opening it removes unfinished files of killed builds.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.full = False  # whether a file did not fit on the disk since the last `expect`
        self._needed = 0
        with self.explained():
            for name in (BLOBS, "records", "rootfs", "tmp", "locks"):
                (root / name).mkdir(parents=True, exist_ok=True)
            if not (root / "locks" / "gate").exists():
                (root / "locks" / "gate").touch()
            if not (root / LAYOUT_FILE).exists():
                self.replace(LAYOUT_FILE, LAYOUT_VERSION)
            if not (root / INDEX_FILE).exists():
                with self.lock("index"):
                    if not (root / INDEX_FILE).exists():  # else another build made it, and has names in it by now
                        self.replace(INDEX_FILE, b'{"schemaVersion":2,"manifests":[]}')
            temporary.sweep(root / "tmp")

    @property
    def scratch(self) -> Path:
        """Return the directory for temporary files without a name, on the store's disk."""
        return self.root / "tmp"

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not."""
        if not is_digest(digest):
            raise StoreError(f"not a digest: {digest!r}", code="store-invalid-digest")
        return self.root / blob_name(digest)

    def has(self, digest: str, size: int | None = None) -> bool:
        """Return whether the blob is here, with the given size in bytes; its content is not verified.

        It counts as used now, and the collector keeps it for a day.
        """
        status = self.use(self.path(digest))
        return status is not None and (size is None or status == size)

    def intact(self, digest: str, size: int | None) -> bool:
        """Return whether the store has a blob, every byte of which was verified since the file was last written; a
        damaged one is removed.
        """
        if not self.has(digest, size):
            return False
        path = self.path(digest)
        with self.explained():
            before = path.stat().st_mtime_ns
        if before % _SECOND == _mark(digest):
            return True
        try:
            self.verify(digest)
        except DamagedError:
            return False
        with suppress(OSError):  # a read-only store
            if path.stat().st_mtime_ns == before:
                os.utime(path, ns=(before, before - before % _SECOND + _mark(digest)))
        return True

    def use(self, path: Path) -> int | None:
        """Return the size in bytes of a file of the store, or None; it counts as used now."""
        with self.explained(), self.gate(fcntl.LOCK_SH):
            try:
                status = path.stat()
            except FileNotFoundError:
                return None
            with suppress(OSError):  # a store that cannot be written is not collected either
                now = time.time_ns()
                os.utime(path, ns=(now, now - now % _SECOND + status.st_mtime_ns % _SECOND))
        return status.st_size

    @contextmanager
    def gate(self, operation: int) -> Iterator[None]:
        """Lock between users and the collector: shared while a file is found and marked as used, exclusive while it is
        removed.
        """
        path = self.root / "locks" / "gate"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # a store that cannot be written is not collected
            yield
            return
        try:
            temporary.flock(handle, operation, path)
            yield
        finally:
            os.close(handle)

    def open(self, digest: str, *, keep: bool = False) -> VerifiedReader:
        """A binary reader that raises DamagedError at the end of a blob whose bytes are not its digest's.

        The damaged blob is removed, so that the next build makes it again, unless `keep` says otherwise.
        """
        path = self.path(digest)
        with self.explained():
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe of that name must not block
            except FileNotFoundError as error:
                raise StoreError(
                    f"the store has no blob {digest}",
                    code="store-blobs-missing",
                    where=str(self.root),
                    fix="build again",
                ) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise DamagedError(f"blob {digest} is not a regular file", where=str(path), fix="remove it")
        return VerifiedReader(open(handle, "rb"), digest, path, None if keep else self)

    def read(self, digest: str) -> bytes:
        """The whole blob, verified; for manifests and configs."""
        with self.open(digest) as reader:
            return reader.read()

    def verify(self, digest: str, *, keep: bool = False) -> None:
        """Read the blob to its end. Raises StoreError when it is absent, or damaged as `open` says."""
        with self.open(digest, keep=keep) as reader:
            for _ in reader:
                pass

    def write(self, data: bytes) -> str:
        """Keep a small blob and return its digest."""
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """A writer for one blob; nothing is kept unless `commit` is called inside the block."""
        with self.explained():
            handle, path = temporary.new_file(self.root / "tmp", "blob-")
            writer = BlobWriter(self, os.fdopen(handle, "wb"), path)
            try:
                yield writer
            finally:
                writer.discard()

    @contextmanager
    def temporary_directory(self, name: str) -> Iterator[Path]:
        """Yield an empty temporary directory on the store's disk, removed at the end or after the build was killed."""
        with self.explained(), temporary.new_directory(self.root / "tmp", f"{name}-") as path:
            yield path

    @contextmanager
    def lock(self, name: str, waiting: tuple[Progress, str] | None = None) -> Iterator[None]:
        """Hold a lock between threads and processes, around work that two builds must not do at once.

        `waiting` is a message for the progress, reported first if another build holds it.
        """
        with ExitStack() as stack:
            with self.explained():
                path = self.root / "locks" / re.sub(r"[^A-Za-z0-9._-]", "_", name)
                stack.enter_context(temporary.locked(path, waiting))
            yield

    def replace(self, name: Path | str, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file of the store (not a blob) whole: readers see the old content or the new.

        Without `sync` a power failure may leave less of it, which is enough for content with a seal.
        """
        with self.explained():
            handle, fresh = temporary.new_file(self.root / "tmp", "new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    if sync:
                        os.fsync(handle)
                    os.replace(fresh, self.root / name)
            finally:
                fresh.unlink(missing_ok=True)

    def expect(self, size: int) -> None:
        """Raise StoreError now if fewer than `size` bytes are free, instead of filling the disk later.

        Should the disk be full later all the same, the error names the size.
        """
        self._needed, self.full = size, False
        disk.require(self.root, "the store", _REMEDY, size)

    def blame_disk(self, stderr: str) -> None:
        """Raise StoreError if a program's stderr says that the disk of its temporary directory in the store is full."""
        with self.explained():
            disk.require_not_full(stderr)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the errors of a full or read-only disk into sentences. Raises StoreError."""
        try:
            with disk.explained(self.root, "the store", _FIX, self._needed, _REMEDY):
                yield
        except StoreError as error:
            self.full |= error.code == "store-disk-full"
            raise

    def drop(self, path: Path, handle: int) -> bool:
        """Remove the open file at `path`, unless another one has taken its place; whether it is gone."""
        with suppress(OSError), self.gate(fcntl.LOCK_EX):
            if temporary.names(path, handle):
                path.unlink()
            return True
        return False


class BlobWriter:
    """A writer that hashes its data. Use through `Store.writer`."""

    def __init__(self, store: Store, file: BinaryIO, path: Path) -> None:
        self._store, self._file, self._path = store, file, path
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        stopping.check()
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def commit(self, expected: str | None = None) -> str:
        """Make the blob visible and return its digest; StoreError when `expected` is another digest."""
        digest = "sha256:" + self._hash.hexdigest()
        if expected is not None and digest != expected:
            raise StoreError(f"expected {expected}, got {digest}", code="store-digest-mismatch")
        self._file.flush()
        os.fsync(self._file.fileno())
        os.fchmod(self._file.fileno(), 0o444)
        now = time.time_ns()
        os.utime(self._file.fileno(), ns=(now, now - now % _SECOND + _mark(digest)))
        os.replace(self._path, self._store.path(digest))
        return digest

    def discard(self) -> None:
        """Remove an uncommitted blob. `write` and `commit` report a full disk; this does not report it again."""
        try:
            self._path.unlink(missing_ok=True)
        finally:
            with suppress(OSError):
                self._file.close()


class VerifiedReader:
    """Reads a blob forward once and raises DamagedError at its end unless the bytes have the blob's digest.

    The damaged blob is removed from `store`, if there is one.
    """

    def __init__(self, file: BinaryIO, digest: str, path: Path, store: Store | None) -> None:
        self._file, self._digest, self._path, self._store = file, digest, path, store
        self._hash = hashlib.sha256()

    def __enter__(self) -> VerifiedReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[bytes]:
        """The blob in chunks of 1 MiB."""
        while chunk := self.read(_CHUNK):
            yield chunk

    def read(self, size: int = -1) -> bytes:
        stopping.check()
        try:
            data = self._file.read(size)
        except OSError as error:
            raise disk.failure(error, self._path, f"blob {self._digest}", _FIX) from error
        self._hash.update(data)
        if size != 0 and (size < 0 or len(data) < size) and "sha256:" + self._hash.hexdigest() != self._digest:
            fix = "`imagegen store check --repair` removes damaged blobs; the next build makes them again"
            if self._store and self._store.drop(self._path, self._file.fileno()):
                fix = "it has been removed; run the same command again, and it is made or fetched again"
            raise DamagedError(
                f"blob {self._digest} is damaged", where=str(self._path), why="its bytes have another sha256", fix=fix
            )
        return data
