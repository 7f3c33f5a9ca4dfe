"""Layers as streams.

Compressed data and data in pieces are read as a file is, verified against a digest, and never kept.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import zstandard
from isal import igzip, isal_zlib

from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import Allowance, most_unpacked
from imagegen.core.net import ByteSink, Client
from imagegen.image.inventory.layers import LayerEntry, Stream, read_layer
from imagegen.oci.documents import Descriptor

_CHUNK = 1 << 20
_AHEAD = 8 << 20  # bytes buffered ahead of the reader
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WINDOW = 128 << 20  # bytes that a zstd frame may ask for; the format's documentation wants decoders to take it
_DAMAGED = (zlib.error, isal_zlib.error, zstandard.ZstdError, gzip.BadGzipFile, EOFError)


def layer(blob: Stream, digest: str | None, where: str, scratch: Path, allowance: Allowance) -> list[LayerEntry]:
    """Return the entries of the layer in `blob`, however it is compressed.

    Reads the blob to its end; `scratch` and `allowance` as `read_layer`.

    Raises FetchError for one that has another digest, is damaged, or has invalid members.
    """
    plain = Plain(blob)
    try:
        entries = read_layer(plain, scratch, allowance)
        plain.finish()  # the bytes after the tar's end
    except FetchError as error:
        error.where = f"{where}: {error.where}" if error.where else where
        raise
    if digest is not None and plain.digest != digest:
        raise FetchError(
            "a layer differs from its image's manifest",
            code="fetch-digest-mismatch",
            where=where,
            why=f"its digest is {plain.digest}",
        )
    return entries


class Plain:
    """A layer's blob, however it is compressed, read as its tar; its digest is whole once it is read to its end.

    Raises FetchError for a blob that is damaged, and for a bomb.
    """

    def __init__(self, blob: Stream) -> None:
        self._packed = Hashed(blob)
        self._size = 0
        head = b""
        while len(head) < len(_ZSTD) and (chunk := self._packed.read(len(_ZSTD) - len(head))):
            head += chunk
        self._plain = _unpacked(PrefixedStream(head, self._packed))

    def read(self, size: int, /) -> bytes:
        try:
            data: bytes = self._plain.read(size)
        except _DAMAGED as error:  # type: ignore[misc]  # isal's stub declares its class as an instance
            raise FetchError(
                "a layer cannot be read", code="fetch-layer-invalid", why=f"it is damaged: {error}"
            ) from error
        self._size += len(data)
        if self._size > most_unpacked(self._packed.size):
            raise FetchError("a layer unpacks to more than any layer holds", code="fetch-layer-too-large", why="a bomb")
        return data

    def finish(self) -> None:
        """Read both tar and blob to their ends."""
        for stream in (self, self._packed):
            while stream.read(_CHUNK):
                pass

    @property
    def digest(self) -> str:
        """Return the digest of the blob, as far as it was read."""
        return self._packed.digest

    @property
    def size(self) -> int:
        """Bytes that were read of the blob."""
        return self._packed.size


def _unpacked(blob: PrefixedStream) -> Any:
    if blob.head.startswith(_GZIP):
        return igzip.IGzipFile(fileobj=cast("BinaryIO", blob))  # type: ignore[no-untyped-call]
    if blob.head == _ZSTD:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        return decompressor.stream_reader(cast("BinaryIO", blob), read_across_frames=True)
    return blob


class PrefixedStream(io.RawIOBase):
    """A stream of which the first bytes have been read."""

    def __init__(self, head: bytes, remainder: Stream) -> None:
        self.head = self._head = head
        self._rest = remainder

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)


class Hashed:
    """A stream that hashes the bytes read from it, and counts them in `size`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data


class ChunkReader(io.RawIOBase):
    """Pieces of bytes, in their order, as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class Pipe:
    """A bounded buffer from a writing thread to a reading one. `size` is the number of bytes written."""

    def __init__(self) -> None:
        self.size = 0
        self._waiting = bytearray()
        self._changed = threading.Condition()
        self._ended = self._closed = False
        self._error: BaseException | None = None

    def write(self, data: bytes, /) -> None:
        """Append to the buffer; block while it is full. Raises FetchError after the reader has closed it."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _AHEAD or self._closed)
            if self._closed:
                raise FetchError("reading was stopped", code="fetch-stopped")
            self._waiting += data
            self.size += len(data)
            self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes. Raises the exception that ended the writing."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting and self._error:
                raise self._error
            data = bytes(self._waiting[:size])
            del self._waiting[:size]
            self._changed.notify_all()
            return data


class BlobSource(Protocol):
    """A repository of a registry or a layout."""

    def stream(self, digest: str, size: int, into: ByteSink) -> None: ...


@contextmanager
def piped(source: BlobSource, blob: Descriptor, client: Client) -> Iterator[Pipe]:
    """Yield the bytes of a blob, which another thread streams; if the block fails, close the client."""
    pipe = Pipe()

    def run() -> None:
        try:
            source.stream(blob.digest, blob.size, pipe)
        except BaseException as error:  # noqa: BLE001 - it is raised where the bytes are read
            pipe.end(error)
        else:
            pipe.end()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield pipe
    except BaseException:
        client.close()
        raise
    finally:
        pipe.close()
        thread.join()
