"""An image's layers as gzip, for registries and runtimes that do not know zstd: the same diff_ids, other blobs.

Equal layers give equal blobs: the header holds no name and no time, and the stream is cut at fixed places, where blocks
that were compressed side by side meet. Sources: RFC 1952; RFC 1951 (a block without contents ends at a byte's border);
the way of pigz, whose blocks know the 32 KiB before them too.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType

import zstandard

from imagegen.core.errors import StoreError
from imagegen.core.oci.types import GZIP_TYPE, ZSTD_TYPE
from imagegen.core.progress import Meter, Progress
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, StoredBlob
from imagegen.core.text import counted
from imagegen.image.layers.codec import GZIP, GZIP_BLOCK, GZIP_LEVEL
from imagegen.image.layers.image import Image, image, keep
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.plan import digest_of_json
from imagegen.plan.lock.model import Lock

_GZIPPED = BlobCache("gzip")
_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"  # deflate; no flags, no mtime, no extra flags, an unknown system
_WINDOW = 32 << 10
_READ = 1 << 20
_NOTHING: Mapping[str, Layer] = MappingProxyType({})


def gzipped(
    lock: Lock, built: Image, store: Store, progress: Progress, trusted: Mapping[str, Layer] = _NOTHING
) -> Image:
    """Return the image with each zstd layer recompressed as gzip, in the store; layers of other formats stay.

    `trusted` maps keys to trusted gzip layers that are used as they are; their zstd layers need not be in the store.
    The lock's record names the digest of `built`, which has the same contents. Raises StoreError.
    """
    found = {layer.key: _known(layer, store, trusted) for layer in built.layers}
    missing = [layer for layer in built.layers if found[layer.key] is None]
    store.expect(2 * sum(layer.size for layer in missing))  # gzip has been up to 1.3 times as large
    if missing:
        cores, total = len(os.sched_getaffinity(0)), sum(layer.unpacked or 0 for layer in missing)
        with (
            progress.meter(f"compressing {counted(len(missing), 'layer')} as gzip", total) as meter,
            ThreadPoolExecutor(cores, thread_name_prefix="gzip") as pool,
        ):
            for each in missing:
                found[each.key] = _compress(each, store, pool, 2 * cores, meter)
    return keep(store, image(lock, [layer for layer in found.values() if layer]))


def _known(layer: Layer, store: Store, trusted: Mapping[str, Layer]) -> Layer | None:
    if layer.media_type != ZSTD_TYPE:
        return layer
    found, theirs = _GZIPPED.get(store, _key(layer)), trusted.get(layer.key)
    blob = found or (theirs if theirs and theirs.diff_id == layer.diff_id else None)
    return replace(layer, digest=blob.digest, size=blob.size, media_type=GZIP_TYPE) if blob else None


def _compress(layer: Layer, store: Store, pool: ThreadPoolExecutor, ahead: int, meter: Meter) -> Layer:
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
        if (found := f"sha256:{diff.hexdigest()}") != layer.diff_id:
            raise StoreError(
                f"layer {layer.name} is not what it is said to be",
                code="store-layer-differs",
                where=str(store.path(layer.digest)),
                why=f"expected diff_id {layer.diff_id}, got {found}",
                fix="do not trust the signer that describes it; without that description the layer is built here",
            )
        blob.write(struct.pack("<II", checksum, size & 0xFFFFFFFF))
        digest = blob.commit()
        _GZIPPED.put(store, _key(layer), StoredBlob(digest, blob.size))
    return replace(layer, digest=digest, size=blob.size, media_type=GZIP_TYPE)


def _blocks(layer: Layer, store: Store, meter: Meter) -> Iterator[tuple[bytes, bool]]:
    """Yield the layer's uncompressed bytes in blocks, each with whether it is the last."""
    if not store.intact(layer.digest, layer.size):
        raise StoreError(
            f"layer {layer.name} was missing or damaged",
            code="store-blobs-missing",
            where=str(store.path(layer.digest)),
            fix="run the same command again: it makes it anew",
        )
    with store.open(layer.digest) as blob:
        unpacked = zstandard.ZstdDecompressor().stream_reader(blob, read_size=_READ, read_across_frames=True)  # type: ignore[arg-type]
        block = _read(unpacked)
        while following := _read(unpacked):
            yield block, False
            meter.advance(len(block))
            block = following
        yield block, True
        meter.advance(len(block))


def _read(stream: zstandard.ZstdDecompressionReader) -> bytes:
    """A block, or what is left of the stream."""
    parts, required = [], GZIP_BLOCK
    while required and (part := stream.read(required)):
        parts.append(part)
        required -= len(part)
    return b"".join(parts)


def _deflated(block: bytes, before: bytes, *, last: bool) -> bytes:
    """The block as a part of a deflate stream, in which `before` precedes it."""
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
    return deflate.compress(block) + deflate.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def _key(layer: Layer) -> str:
    return digest_of_json([layer.diff_id, GZIP])
