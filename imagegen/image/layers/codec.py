"""Compression of layers: zstd with every parameter fixed, so that equal tar streams give equal blobs.

The uncompressed digest (diff_id) depends only on the lock and the layer format; the blob's also on libzstd, so its
version is part of the codec's name, which stands in every record. Source: OCI image-spec v1.1, media type
application/vnd.oci.image.layer.v1.tar+zstd; RFC 8878, by which a stream is any number of frames.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import zstandard

from imagegen.core.store.layout import BlobWriter

# Level 1 packs a wheel's files to about the size of the wheel and keeps up with a download; level 3 is a little smaller
# and slower. A frame of its own for every 4 MiB costs 0.4 % of size and spares the encoder its sliding window: an
# eighth less time (docs/adr/0005-zstd.md).
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


@cache
def _packers(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork of this process has none of its threads
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="pack")


class LayerSink:
    """Takes a tar stream, gives a compressed blob and the stream's own digest. How the writer cuts it does not show.

    A frame is compressed in another thread while the next one is filled.
    """

    def __init__(self, blob: BlobWriter) -> None:
        self._blob = blob
        self._diff = hashlib.sha256()
        # threads=0 is the single-threaded encoder: with workers libzstd cuts the stream elsewhere.
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, threads=0, write_checksum=False)
        self._frame, self._other = (memoryview(bytearray(FRAME)) for _ in range(2))
        self._filled = 0
        self._packing: Future[None] | None = None
        self._frames: list[int] = []  # where in the blob each frame begins
        self._packed = 0
        self.unpacked = 0

    def write(self, data: bytes) -> None:
        self.unpacked += len(data)
        remainder = memoryview(data)
        while remainder:
            piece = remainder[: FRAME - self._filled]
            self._frame[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            remainder = remainder[len(piece) :]
            if self._filled == FRAME:
                self._flush()

    def close(self) -> str:
        """Finish the blob (not yet committed) and return the diff_id."""
        self._flush()
        self._wait()
        return "sha256:" + self._diff.hexdigest()

    def place(self, position: int) -> tuple[int, int]:
        """Return where in the finished blob the frame with a byte of the stream begins, and how many bytes of the
        frame come before that byte.
        """
        return self._frames[position // FRAME], position % FRAME

    def _flush(self) -> None:
        self._wait()
        self._packing = _packers(os.getpid()).submit(self._pack, self._frame[: self._filled])
        self._frame, self._other = self._other, self._frame
        self._filled = 0

    def _wait(self) -> None:
        if self._packing:
            self._packing.result()

    def _pack(self, frame: memoryview) -> None:
        self._diff.update(frame)
        packed = self._zstd.compress(frame)
        self._frames.append(self._packed)
        self._packed += len(packed)
        self._blob.write(packed)
