"""Compression of layers: zstd with every parameter fixed, so that equal tar streams give equal blobs.

The uncompressed digest (diff_id) depends on the lock and the layer format alone; the blob's also on libzstd, so its
version is part of the codec's name, which stands in every record. Source: OCI image-spec v1.1, media type
application/vnd.oci.image.layer.v1.tar+zstd; RFC 8878, by which a stream is any number of frames.
"""

from __future__ import annotations

import hashlib
import zlib

import zstandard

from imagegen.core.store.layout import BlobWriter

# Level 1 packs a wheel's files to about the size of the wheel and keeps up with a download; level 3 is a little smaller
# and slower. A frame of its own for every 4 MiB costs 0.4 % of size and spares the encoder its sliding window: an
# eighth less time (docs/internals/measurements.md).
LEVEL = 1
FRAME = 4 << 20
CODEC = (
    f"zstd {'.'.join(str(part) for part in zstandard.ZSTD_VERSION)} level {LEVEL} frames of {FRAME >> 20} MiB "
    f"(zstandard {zstandard.__version__})"
)
MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"

# For registries and runtimes that do not know zstd. zlib gives the same bytes on every processor, which faster encoders
# of the format do not promise (github.com/intel/isa-l issue 140); level 4 packs as tight as zstd's level 1 does.
GZIP_LEVEL = 4
GZIP_BLOCK = 4 << 20
GZIP = f"zlib {zlib.ZLIB_RUNTIME_VERSION} level {GZIP_LEVEL} blocks of {GZIP_BLOCK >> 20} MiB"
GZIP_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"


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
