"""Compression of layers: zstd with every parameter fixed, so that equal tar streams give equal blobs.

The uncompressed digest (diff_id) depends on the lock and the layer format alone; the blob's also on libzstd, so its
version is part of the codec's name, which stands in every record. Source: OCI image-spec v1.1, media type
application/vnd.oci.image.layer.v1.tar+zstd; RFC 8878, by which a stream is any number of frames.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterable

import zstandard

from imagegen.core.store.layout import BlobWriter
from imagegen.core.types import EPOCH

# Level 1 packs a wheel's files to about the size of the wheel and keeps up with a download; level 3 is a little smaller
# and slower. A frame of its own for every 4 MiB costs 0.4 % of size and spares the encoder its sliding window: an
# eighth less time (docs/internals/measurements.md).
LEVEL = 1
FRAME = 4 << 20
CODEC = (
    f"zstd {'.'.join(str(part) for part in zstandard.ZSTD_VERSION)} level {LEVEL} frames of {FRAME >> 20} MiB "
    f"(zstandard {zstandard.__version__})"
)

# For registries and runtimes that do not know zstd. zlib gives the same bytes on every processor, which faster encoders
# of the format do not promise (github.com/intel/isa-l issue 140); level 4 packs as tight as zstd's level 1 does.
GZIP_LEVEL = 4
GZIP_BLOCK = 4 << 20
GZIP = f"zlib {zlib.ZLIB_RUNTIME_VERSION} level {GZIP_LEVEL} blocks of {GZIP_BLOCK >> 20} MiB"


class LayerSink:
    """Takes a tar stream, gives a compressed blob and the stream's own digest. How the writer cuts it does not show."""

    def __init__(self, blob: BlobWriter) -> None:
        self._blob = blob
        self._diff = hashlib.sha256()
        # threads=0 is the single-threaded encoder: with workers libzstd cuts the stream elsewhere.
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, threads=0, write_checksum=False)
        self._frame = bytearray(FRAME)
        self._filled = 0
        self.unpacked = 0

    def write(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            taken = min(FRAME - self._filled, len(data) - start)
            self._frame[self._filled : self._filled + taken] = memoryview(data)[start : start + taken]
            self._filled += taken
            start += taken
            if self._filled == FRAME:
                self._flush()
        self.unpacked += len(data)

    def close(self) -> str:
        """Finish the blob (not yet committed) and return the diff_id."""
        self._flush()
        return "sha256:" + self._diff.hexdigest()

    def _flush(self) -> None:
        with memoryview(self._frame)[: self._filled] as frame:
            self._diff.update(frame)
            self._blob.write(self._zstd.compress(frame))
        self._filled = 0


# A deterministic tar stream: the layer format's only writer.
#
# POSIX.1-2001 (pax) headers, as the standard library writes them, from fields that hold nothing of this machine: uid
# and gid 0, no names, one mtime. Source of the layer rules: OCI image-spec v1.1, layer.md.

_USTAR_NAME = 99  # characters, so that a directory's slash fits as well
_USTAR_SIZE = 1 << 33
_OWNERS = b"0000000\0" * 2
_TIME = b"%011o\0" % EPOCH
_REST = bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8 + 155 + 12)


class TarWriter:
    """Writes entries to `write` in the order given. Parent directories come first, once each, all alike (0755).

    `below` are directories of lower layers whose modes are their own: they get no entry.
    """

    def __init__(self, write: Callable[[bytes], object], below: Iterable[str] = ()) -> None:
        self._write = write
        self._directories = {path.strip("/") for path in below}

    def directory(self, path: str, mode: int = 0o755) -> None:
        """A directory and its parents, unless this stream has them; `path` is absolute in the image."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            if name not in self._directories:
                self._directories.add(name)
                self._header(name, tarfile.DIRTYPE, mode=mode if depth == len(parts) else 0o755)

    def file(self, path: str, size: int, chunks: Iterable[bytes], *, executable: bool = False) -> None:
        """A regular file of exactly `size` bytes."""
        self.directory(path.rpartition("/")[0])
        self._header(path.strip("/"), tarfile.REGTYPE, mode=0o755 if executable else 0o644, size=size)
        written = 0
        for chunk in chunks:
            self._write(chunk)
            written += len(chunk)
        if written != size:
            raise ValueError(f"{path}: {written} bytes instead of {size}")
        self._write(b"\0" * (-size % tarfile.BLOCKSIZE))

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        self.directory(path.rpartition("/")[0])
        self._header(path.strip("/"), tarfile.SYMTYPE, mode=0o777, target=target)

    def close(self) -> None:
        """The end-of-archive mark, without padding to a record: nothing reads these from tape."""
        self._write(b"\0" * tarfile.BLOCKSIZE * 2)

    def _header(self, name: str, kind: bytes, *, mode: int, size: int = 0, target: str = "") -> None:
        if target == "" and size < _USTAR_SIZE and len(name) <= _USTAR_NAME and name.isascii():
            self._write(_ustar(name, kind, mode, size))
            return
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, size, target, EPOCH
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))


def _ustar(name: str, kind: bytes, mode: int, size: int) -> bytes:
    """Return a tar header as the standard library writes it, in a tenth of the time (POSIX.1-2001, ustar).

    Stacks have tens of thousands of small files; a test holds this to the library's bytes.
    """
    path = name + "/" if kind == tarfile.DIRTYPE else name
    before = b"%s%07o\0%s%011o\0%s" % (path.encode().ljust(100, b"\0"), mode, _OWNERS, size, _TIME)
    after = kind + _REST
    checksum = sum(before) + sum(after) + 8 * ord(" ")
    return b"%s%06o\0 %s" % (before, checksum, after)
