"""Gzip layers of an image instead of zstd layers, with the same diff_ids and other blobs.

They are for registries and runtimes that do not know zstd. Equal layers give equal blobs. A gzip header has no name and
no time. The stream is cut into blocks of a fixed size, which are compressed in parallel. Sources: RFC 1952; RFC 1951 (a
block without contents ends at a byte's border); pigz, whose blocks also have a window of the 32 KiB before them.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import zstandard

from imagegen.core.errors import StoreError
from imagegen.core.progress import Meter, Progress
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, StoredBlob
from imagegen.core.text import counted
from imagegen.image.layers.codec import GZIP, GZIP_BLOCK, GZIP_LEVEL
from imagegen.image.layers.image_config import Image, image, keep
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.plan import digest_of_json
from imagegen.lock.model import Lock
from imagegen.oci.documents import GZIP_TYPE, ZSTD_TYPE

_GZIPPED = BlobCache("gzip")
_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"  # deflate; no flags, no mtime, no extra flags, an unknown system
_WINDOW = 32 << 10
_READ = 1 << 20
_NO_LAYERS: Mapping[str, Layer] = MappingProxyType({})


def compress_with_gzip(
    lock: Lock, built: Image, store: Store, progress: Progress, trusted: Mapping[str, Layer] = _NO_LAYERS
) -> Image:
    """Return the image with each zstd layer as a gzip layer, in the store; layers of other formats stay.

    `trusted` maps keys to trusted gzip layers, which are used unchanged; their zstd layers need not be in the store.
    The lock's record names the digest of `built`, which has the same contents. Raises StoreError.
    """
    layers = {layer.key: _cached(layer, store, trusted) for layer in built.layers}
    missing = [layer for layer in built.layers if layers[layer.key] is None]
    store.expect(2 * sum(layer.size for layer in missing))  # gzip has been up to 1.3 times as large
    if missing:
        cores, total = len(os.sched_getaffinity(0)), sum(layer.unpacked or 0 for layer in missing)
        with (
            progress.meter(f"compressing {counted(len(missing), 'layer')} as gzip", total) as meter,
            ThreadPoolExecutor(cores, thread_name_prefix="compress") as pool,
        ):
            for layer in missing:
                layers[layer.key] = _compress(layer, store, pool, 2 * cores, meter)
    return keep(store, image(lock, [layer for layer in layers.values() if layer]))


def _cached(layer: Layer, store: Store, trusted: Mapping[str, Layer]) -> Layer | None:
    """Return the layer that needs no work: one of another format, or a gzip layer of the store or a trusted signer."""
    if layer.media_type != ZSTD_TYPE:
        return layer
    attested = trusted.get(layer.key)
    if attested and attested.diff_id != layer.diff_id:
        attested = None
    blob = _GZIPPED.get(store, gzip_key(layer, GZIP)) or attested
    return replace(layer, digest=blob.digest, size=blob.size, media_type=GZIP_TYPE) if blob else None


def _compress(layer: Layer, store: Store, pool: ThreadPoolExecutor, ahead: int, meter: Meter) -> Layer:
    """Write the gzip layer; at most `ahead` blocks wait in memory."""
    with store.writer() as blob:
        blob.write(_HEADER)
        checksum, size, diff = 0, 0, hashlib.sha256()
        waiting: deque[Future[bytes]] = deque()
        window = b""
        for block, last in _blocks(layer, store, meter):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
            diff.update(block)
            waiting.append(pool.submit(_deflated, block, window, last=last))
            window = block[-_WINDOW:]
            if len(waiting) > ahead:
                blob.write(waiting.popleft().result())
        for future in waiting:
            blob.write(future.result())
        if (diff_id := f"sha256:{diff.hexdigest()}") != layer.diff_id:
            raise StoreError(
                f"the contents of layer {layer.name} differ from its description",
                code="store-layer-differs",
                where=str(store.path(layer.digest)),
                why=f"expected diff_id {layer.diff_id}, got {diff_id}",
                fix="do not trust the signer that describes it; without that description the layer is built here",
            )
        blob.write(struct.pack("<II", checksum, size & 0xFFFFFFFF))
        digest = blob.commit()
        _GZIPPED.put(store, gzip_key(layer, GZIP), StoredBlob(digest, blob.size))
    return replace(layer, digest=digest, size=blob.size, media_type=GZIP_TYPE)


def _deflated(block: bytes, before: bytes, *, last: bool) -> bytes:
    """Return the block as a part of a deflate stream, in which `before` precedes it."""
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
    return deflate.compress(block) + deflate.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def _blocks(layer: Layer, store: Store, meter: Meter) -> Iterator[tuple[bytes, bool]]:
    """Yield the layer's uncompressed bytes in blocks, each with whether it is the last."""
    with _uncompressed(layer, store, meter) as tar:
        block = tar.read(GZIP_BLOCK)
        while following := tar.read(GZIP_BLOCK):
            yield block, False
            block = following
        yield block, True


@contextmanager
def _uncompressed(layer: Layer, store: Store, meter: Meter) -> Iterator[io.BufferedReader]:
    """Open the uncompressed bytes of a layer of zstd; `meter` counts them. Raises StoreError for a damaged blob."""
    if not store.intact(layer.digest, layer.size):
        raise StoreError(
            f"layer {layer.name} was missing or damaged",
            code="store-blobs-missing",
            where=str(store.path(layer.digest)),
            fix="run the same command again, which makes the layer anew",
        )
    with store.open(layer.digest) as blob:
        stream = zstandard.ZstdDecompressor().stream_reader(blob, read_size=_READ, read_across_frames=True)  # type: ignore[arg-type]
        yield io.BufferedReader(_Counted(stream, meter), _READ)


class _Counted(io.RawIOBase):
    """A stream that counts the bytes that are read."""

    def __init__(self, stream: zstandard.ZstdDecompressionReader, meter: Meter) -> None:
        self._stream, self._meter = stream, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._stream.readinto(buffer)
        self._meter.advance(size)
        return size


def gzip_key(layer: Layer, codec: str) -> str:
    """Return the key under which a store keeps the gzip blob of a layer."""
    return digest_of_json([layer.diff_id, codec])
