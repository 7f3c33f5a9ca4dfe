"""An image with its layers in another compression than locks record: the same diff_ids, other blobs.

gzip is for registries and runtimes that do not know zstd; zstd:chunked and zstd:stargz (`chunked`), which have the same
blobs, for clients that fetch single files of a layer. Equal layers give equal blobs. A gzip header holds no name and no
time, and the stream is cut at fixed places, where blocks that were compressed side by side meet. Sources: RFC 1952;
RFC 1951 (a block without contents ends at a byte's border); the way of pigz, whose blocks know the 32 KiB before them
too.
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
from typing import Any, Literal, TypeAlias

import zstandard

from imagegen.core.errors import StoreError
from imagegen.core.layer_tar import DAMAGED
from imagegen.core.oci import GZIP_TYPE, ZSTD_TYPE
from imagegen.core.progress import Meter, Progress
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, Cache, StoredBlob
from imagegen.core.text import counted
from imagegen.image.layers import chunked
from imagegen.image.layers.chunked import CHUNKED, ChunkedBlob
from imagegen.image.layers.codec import GZIP, GZIP_BLOCK, GZIP_LEVEL
from imagegen.image.layers.image import Image, image, keep
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.plan import digest_of_json
from imagegen.plan.lock.model import Lock

_GZIPPED = BlobCache("gzip")
_CHUNKED = Cache("chunked", ChunkedBlob)
_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"  # deflate; no flags, no mtime, no extra flags, an unknown system
_WINDOW = 32 << 10
_READ = 1 << 20
_NOTHING: Mapping[str, Layer] = MappingProxyType({})

Recompression: TypeAlias = Literal["gzip", "zstd:chunked", "zstd:stargz"]


def recompressed(
    lock: Lock,
    built: Image,
    compression: Recompression,
    store: Store,
    progress: Progress,
    trusted: Mapping[str, Layer] = _NOTHING,
) -> Image:
    """Return the image with each zstd layer in another compression, in the store; layers of other formats stay.

    A registry's layer stays too where the compression is not gzip: clients reject such a layer for what tars of
    other programs may hold, two members of one path for instance.

    `trusted` maps keys to trusted layers of that compression, which are used as they are; their zstd layers need not be
    in the store. The lock's record names the digest of `built`, which has the same contents. Raises StoreError.
    """
    found = {layer.key: _known(layer, compression, store, trusted) for layer in built.layers}
    missing = [layer for layer in built.layers if found[layer.key] is None]
    store.expect(2 * sum(layer.size for layer in missing))  # gzip has been up to 1.3 times as large
    if missing:
        cores, total = len(os.sched_getaffinity(0)), sum(layer.unpacked or 0 for layer in missing)
        with (
            progress.meter(f"compressing {counted(len(missing), 'layer')} as {compression}", total) as meter,
            ThreadPoolExecutor(cores, thread_name_prefix="compress") as pool,
        ):
            if compression == "gzip":
                for each in missing:
                    found[each.key] = _gzip(each, store, pool, 2 * cores, meter)
            else:
                largest_first = sorted(missing, key=lambda layer: -layer.size)
                for future in [pool.submit(_chunk, each, compression, store, meter) for each in largest_first]:
                    found[future.result().key] = future.result()
    return keep(store, image(lock, [layer for layer in found.values() if layer]))


def _known(layer: Layer, compression: Recompression, store: Store, trusted: Mapping[str, Layer]) -> Layer | None:
    """Return the layer where it needs no work: it stays as it is, or the store or a trusted signer has it."""
    if layer.media_type != ZSTD_TYPE or (compression != "gzip" and layer.unpacked is None):
        return layer
    theirs = trusted.get(layer.key)
    if theirs and theirs.diff_id != layer.diff_id:
        theirs = None
    if compression == "gzip":
        packed = _GZIPPED.get(store, _key(layer, GZIP)) or theirs
        return replace(layer, digest=packed.digest, size=packed.size, media_type=GZIP_TYPE) if packed else None
    made = _CHUNKED.get(store, _key(layer, CHUNKED))
    if made and store.has(made.digest, made.size):
        return made.as_layer(layer, compression)
    return replace(theirs, name=layer.name) if theirs else None


def _gzip(layer: Layer, store: Store, pool: ThreadPoolExecutor, ahead: int, meter: Meter) -> Layer:
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
        _require_contents(layer, f"sha256:{diff.hexdigest()}", store)
        blob.write(struct.pack("<II", checksum, size & 0xFFFFFFFF))
        digest = blob.commit()
        _GZIPPED.put(store, _key(layer, GZIP), StoredBlob(digest, blob.size))
    return replace(layer, digest=digest, size=blob.size, media_type=GZIP_TYPE)


def _deflated(block: bytes, before: bytes, *, last: bool) -> bytes:
    """The block as a part of a deflate stream, in which `before` precedes it."""
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
    return deflate.compress(block) + deflate.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def _chunk(layer: Layer, compression: Recompression, store: Store, meter: Meter) -> Layer:
    with uncompressed(layer, store, meter) as tar, store.writer() as blob:
        try:
            diff_id, contents = chunked.write(tar, blob)
        except DAMAGED as error:
            raise _differs(layer, store, f"it is no tar that imagegen writes: {error}") from error
        _require_contents(layer, diff_id, store)
        made = ChunkedBlob(blob.commit(), blob.size, contents)
    _CHUNKED.put(store, _key(layer, CHUNKED), made)
    return made.as_layer(layer, compression)


def _require_contents(layer: Layer, diff_id: str, store: Store) -> None:
    if diff_id != layer.diff_id:
        raise _differs(layer, store, f"expected diff_id {layer.diff_id}, got {diff_id}")


def _differs(layer: Layer, store: Store, why: str) -> StoreError:
    return StoreError(
        f"layer {layer.name} is not what it is said to be",
        code="store-layer-differs",
        where=str(store.path(layer.digest)),
        why=why,
        fix="do not trust the signer that describes it; without that description the layer is built here",
    )


def _blocks(layer: Layer, store: Store, meter: Meter) -> Iterator[tuple[bytes, bool]]:
    """Yield the layer's uncompressed bytes in blocks, each with whether it is the last."""
    with uncompressed(layer, store, meter) as tar:
        block = tar.read(GZIP_BLOCK)
        while following := tar.read(GZIP_BLOCK):
            yield block, False
            block = following
        yield block, True


@contextmanager
def uncompressed(layer: Layer, store: Store, meter: Meter) -> Iterator[io.BufferedReader]:
    """Open the uncompressed bytes of a layer of zstd; `meter` counts them. Raises StoreError for a damaged blob."""
    if not store.intact(layer.digest, layer.size):
        raise StoreError(
            f"layer {layer.name} was missing or damaged",
            code="store-blobs-missing",
            where=str(store.path(layer.digest)),
            fix="run the same command again: it makes it anew",
        )
    with store.open(layer.digest) as blob:
        stream = zstandard.ZstdDecompressor().stream_reader(blob, read_size=_READ, read_across_frames=True)  # type: ignore[arg-type]
        yield io.BufferedReader(_Counted(stream, meter), _READ)


class _Counted(io.RawIOBase):
    """A stream whose bytes are counted as they are read."""

    def __init__(self, stream: zstandard.ZstdDecompressionReader, meter: Meter) -> None:
        self._stream, self._meter = stream, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._stream.readinto(buffer)
        self._meter.advance(size)
        return size


def _key(layer: Layer, codec: str) -> str:
    return digest_of_json([layer.diff_id, codec])
