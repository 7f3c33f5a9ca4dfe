"""The store: a content-addressed OCI image layout, shared by concurrent builds.

Source: OCI image-spec v1.1, image-layout.md. Beside the layout's own entries live `records/` (what a key of inputs
once gave), `rootfs/` (unpacked bases, remade when missing), `tmp/` and `locks/`.

Writers write to a temporary name, fsync, and rename; a killed build leaves nothing that a later one would trust.
Readers verify: `open` checks the digest of every byte that it gives out.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from imagegen.errors import StoreError

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNK = 1 << 20

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
LAYOUT_FILE = b'{"imageLayoutVersion":"1.0.0"}'  # what every layout's oci-layout holds


def digest_of(data: bytes) -> str:
    """The OCI digest of `data`: "sha256:" and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether `text` has the form of an OCI digest, as `digest_of` writes it."""
    return _DIGEST.fullmatch(text) is not None


class Store:
    """Blobs by digest, small records by (kind, key). Raises StoreError for damage, a full disk, a read-only store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with explained(root):
            for name in ("blobs/sha256", "records", "rootfs", "tmp", "locks"):
                (root / name).mkdir(parents=True, exist_ok=True)
            if not (root / "oci-layout").exists():
                self.replace("oci-layout", LAYOUT_FILE)
            if not (root / "index.json").exists():
                with self.lock("index"):
                    if not (root / "index.json").exists():  # else another build made it, and has names in it by now
                        self.replace("index.json", b'{"schemaVersion":2,"manifests":[]}')

    def path(self, digest: str) -> Path:
        """Where the blob lies or would lie."""
        if not is_digest(digest):
            raise StoreError(f"not a digest: {digest!r}")
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob is here, with the given size in bytes; says nothing of its content."""
        try:
            found = self.path(digest).stat().st_size
        except FileNotFoundError:
            return False
        return size is None or found == size

    def open(self, digest: str) -> VerifiedReader:
        """A binary reader that raises StoreError at the end of a blob whose bytes are not its digest's."""
        try:
            return VerifiedReader(self.path(digest).open("rb"), digest, self.path(digest))
        except FileNotFoundError as error:
            raise StoreError(f"the store has no blob {digest}", where=str(self.root), fix="build again") from error

    def read(self, digest: str) -> bytes:
        """The whole blob, verified; for manifests and configs."""
        with self.open(digest) as reader:
            return reader.read()

    def verify(self, digest: str) -> None:
        """Read the blob to its end. Raises StoreError when it is absent or damaged."""
        with self.open(digest) as reader:
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
        with explained(self.root):
            handle, name = tempfile.mkstemp(dir=self.root / "tmp", prefix="blob-")
            writer = BlobWriter(self, os.fdopen(handle, "wb"), Path(name))
            try:
                yield writer
            finally:
                writer.discard()

    def recall(self, kind: str, key: str) -> dict[str, Any] | None:
        """What `remember` kept under this kind and key ("sha256:..."), or None. A damaged record counts as absent."""
        try:
            found = json.loads(self._record(kind, key).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def remember(self, kind: str, key: str, record: dict[str, Any]) -> None:
        """Keep what the inputs behind `key` gave, so that nobody has to do it again."""
        path = self._record(kind, key)
        with explained(self.root):
            path.parent.mkdir(exist_ok=True)
            self.replace(path.relative_to(self.root), json.dumps(record, sort_keys=True).encode())

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """A lock between threads and processes, held around work that two builds must not do at once."""
        lock = FileLock(self.root / "locks" / re.sub(r"[^A-Za-z0-9._-]", "_", name))
        with explained(self.root):
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _record(self, kind: str, key: str) -> Path:
        return self.root / "records" / kind / self.path(key).name

    def replace(self, name: Path | str, data: bytes) -> None:
        """Replace a small file of the store (not a blob) whole: readers see the old content or the new."""
        with explained(self.root):
            handle, fresh = tempfile.mkstemp(dir=self.root / "tmp", prefix="new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(fresh, self.root / name)
            finally:
                Path(fresh).unlink(missing_ok=True)


class BlobWriter:
    """Hashes what it writes. Use through `Store.writer`."""

    def __init__(self, store: Store, file: BinaryIO, path: Path) -> None:
        self._store, self._file, self._path = store, file, path
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def commit(self, expected: str | None = None) -> str:
        """Make the blob visible and return its digest; StoreError when `expected` is another digest."""
        digest = "sha256:" + self._hash.hexdigest()
        if expected is not None and digest != expected:
            raise StoreError(f"expected {expected}, got {digest}")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.chmod(self._path, 0o444)
        os.replace(self._path, self._store.path(digest))
        return digest

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class VerifiedReader:
    """Reads a blob forward once and raises StoreError at its end unless the bytes have the blob's digest."""

    def __init__(self, file: BinaryIO, digest: str, path: Path) -> None:
        self._file, self._digest, self._path = file, digest, path
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
        data = self._file.read(size)
        self._hash.update(data)
        if size != 0 and (size < 0 or len(data) < size) and "sha256:" + self._hash.hexdigest() != self._digest:
            raise StoreError(
                f"blob {self._digest} is damaged",
                where=str(self._path),
                why="its bytes have another sha256",
                fix="`imagegen store check --repair` removes damaged blobs; the next build makes them again",
            )
        return data


@contextmanager
def explained(root: Path) -> Iterator[None]:
    """Turn the errors of a full or read-only disk into sentences."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = os.statvfs(root)
            why = f"{free.f_bavail * free.f_frsize / 1e9:.1f} GB are free"
            raise StoreError(
                "the disk of the store is full",
                where=str(root),
                why=why,
                fix="`imagegen store gc`, or set XDG_CACHE_HOME to a larger disk",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise StoreError(
                "the store cannot be written",
                where=str(root),
                why=os.strerror(error.errno),
                fix="set XDG_CACHE_HOME to a directory of yours",
            ) from error
        raise
