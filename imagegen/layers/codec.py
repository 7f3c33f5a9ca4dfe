"""Compression of layers: zstd with every parameter fixed, so that equal tar streams give equal blobs.

The uncompressed digest (diff_id) depends on the lock and the layer format alone; the blob's also on libzstd, so its
version is part of the codec's name, which stands in every record. Source: OCI image-spec v1.1, media type
application/vnd.oci.image.layer.v1.tar+zstd; RFC 8878.
"""

from __future__ import annotations

import hashlib

import zstandard

from imagegen.store.layout import BlobWriter

# Level 1 packs a wheel's files to about the size of the wheel and keeps up with a download; level 3 is a little smaller
# and slower.
LEVEL = 1
CODEC = (
    f"zstd {'.'.join(str(part) for part in zstandard.ZSTD_VERSION)} level {LEVEL} (zstandard {zstandard.__version__})"
)
MEDIA_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
_BLOCK = 1 << 20


class LayerSink:
    """Takes a tar stream, gives a compressed blob and the stream's own digest. Nothing of the stream is kept."""

    def __init__(self, blob: BlobWriter) -> None:
        self._blob = blob
        self._diff = hashlib.sha256()
        # threads=0 is the single-threaded encoder: with workers libzstd cuts the stream elsewhere.
        options = zstandard.ZstdCompressor(level=LEVEL, threads=0, write_checksum=False, write_content_size=False)
        self._zstd = options.compressobj()
        self._buffer = bytearray()
        self.unpacked = 0

    def write(self, data: bytes) -> None:
        """Compress in blocks of one size, however the writer cuts its data."""
        self.unpacked += len(data)
        self._buffer += data
        while len(self._buffer) >= _BLOCK:
            self._block(bytes(self._buffer[:_BLOCK]))
            del self._buffer[:_BLOCK]

    def close(self) -> str:
        """Finish the blob (not yet committed) and return the diff_id."""
        self._block(bytes(self._buffer))
        self._buffer.clear()
        self._blob.write(self._zstd.flush())
        return "sha256:" + self._diff.hexdigest()

    def _block(self, data: bytes) -> None:
        self._diff.update(data)
        self._blob.write(self._zstd.compress(data))
