"""Layers as streams, and an image in an archive, as `docker save` writes it and as OCI layouts have it.

What comes in pieces or is compressed is read as a file is, held to its digest, and never kept.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import posixpath
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import zstandard
from isal import igzip, isal_zlib

from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members, most_unpacked
from imagegen.image.inventory.layers import LayerEntry, Stream, read_layer
from imagegen.oci.documents import (
    ImageConfig,
    LayerDescriptor,
    Manifest,
    Platform,
    digest_of,
    read_config,
    read_document,
    read_entry,
    read_index,
)
from imagegen.oci.layout import BLOBS, INDEX_FILE, LAYOUT_FILE, blob_name

_CHUNK = 1 << 20
_AHEAD = 8 << 20  # bytes buffered ahead of the reader
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WINDOW = 128 << 20  # bytes that a zstd frame may ask for: what the format's documentation wants decoders to take
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


@contextmanager
def piped(fill: Callable[[Pipe], None], stop: Callable[[], None]) -> Iterator[Pipe]:
    """Yield the bytes that `fill` writes in a thread of its own; `stop` cancels it when the block fails."""
    pipe = Pipe()

    def run() -> None:
        try:
            fill(pipe)
        except BaseException as error:  # noqa: BLE001 - it is raised where the bytes are read
            pipe.end(error)
        else:
            pipe.end()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield pipe
    except BaseException:
        stop()
        raise
    finally:
        pipe.close()
        thread.join()


# An image in an archive, as `docker save` writes it and as OCI layouts have it: its config and its layers' entries.
#
# An archive is read once, from its first byte to its last: layers come before the documents that give their order.
# Sources: OCI image-spec v1.1, image-layout.md; Docker image specification v1.2 (manifest.json), for engines that do
# not write an OCI layout yet.

_BLOCK = 1 << 20
_MAX_FILES = 10_000
_MAX_DOCUMENTS = 64 << 20  # bytes, of all
_MAX_DEPTH = 4  # indexes in indexes
_MANIFEST = "manifest.json"
_OTHERS = ("VERSION", "repositories", LAYOUT_FILE)


@dataclass(frozen=True)
class ArchivedImage:
    """An image, read: `layers` from the bottom up."""

    config: ImageConfig
    layers: tuple[list[LayerEntry], ...]


def read(stream: Stream, platform: Platform, where: str, scratch: Path) -> ArchivedImage:
    """The one image of an archive, for `platform`. `scratch` as for `read_layer`. Raises FetchError."""
    archive = _Archive(where, scratch)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=_BLOCK, tarinfo=Bounded) as tar:
            for member in members(tar):
                archive.add(member, tar)
    except DAMAGED as error:
        raise FetchError(f"{where} is not an archive of an image", code="fetch-not-an-image", why=str(error)) from error
    return archive.contents(platform)


class _Archive:
    """The members of the archive, by the names that its own documents use."""

    def __init__(self, where: str, scratch: Path) -> None:
        self._where, self._scratch = where, scratch
        self._documents: dict[str, bytes] = {}
        self._layers: dict[str, list[LayerEntry]] = {}
        self._links: dict[str, str] = {}
        self._held = 0  # bytes of documents
        self._allowance = Allowance()

    def add(self, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
        """A file is a document, which is short JSON, or else a layer."""
        name = member.name
        if len(self._documents) + len(self._layers) + len(self._links) >= _MAX_FILES:
            raise FetchError(f"{self._where} holds too many files", code="fetch-image-too-large", where=member.name)
        if member.issym():  # the same layer once more, as old engines write it
            self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            return
        content = tar.extractfile(member) if member.isreg() else None
        if content is None or posixpath.basename(name) in _OTHERS:
            return
        head = content.read(1)
        if head in (b"{", b"["):
            self._held += member.size
            if self._held > _MAX_DOCUMENTS:
                raise FetchError(
                    f"{self._where} has too many bytes outside of its layers",
                    code="fetch-image-too-large",
                    where=member.name,
                )
            self._documents[name] = head + content.read()
        elif head:
            digest = f"sha256:{posixpath.basename(name)}" if name.startswith(f"{BLOBS}/") else None
            blob, where = PrefixedStream(head, content), f"{self._where}: {name}"
            self._layers[name] = layer(blob, digest, where, self._scratch, self._allowance)

    def contents(self, platform: Platform) -> ArchivedImage:
        if INDEX_FILE in self._documents:
            index = self._documents[INDEX_FILE]
            config, descriptors = chosen(
                index, lambda digest: self._documents.get(blob_name(digest)), platform, self._where
            )
            names = [blob_name(descriptor.digest) for descriptor in descriptors]
        else:
            config, names = self._classic()
        layers = [self._layers.get(self._links.get(name, name)) for name in names]
        if None in layers:
            raise FetchError(
                f"{self._where} lacks a layer",
                code="fetch-image-incomplete",
                why=f"{names[layers.index(None)]} is not in it",
            )
        return ArchivedImage(config, tuple(entries for entries in layers if entries is not None))

    def _classic(self) -> tuple[ImageConfig, list[str]]:
        """Return the config and layers of the one image in manifest.json."""
        try:
            (entry,) = parse_json(self._documents[_MANIFEST])
            settings = parse_json(self._documents[posixpath.normpath(entry["Config"])]).get("config") or {}
            config = ImageConfig(
                env=tuple(str(variable) for variable in settings.get("Env") or ()),
                entrypoint=tuple(str(word) for word in settings.get("Entrypoint") or ()),
                command=tuple(str(word) for word in settings.get("Cmd") or ()),
                user=str(settings.get("User") or ""),
                directory=str(settings.get("WorkingDir") or ""),
                labels={str(name): str(value) for name, value in (settings.get("Labels") or {}).items()},
            )
            return config, [posixpath.normpath(path) for path in entry["Layers"]]
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise FetchError(
                f"{self._where} is not an archive of one image", code="fetch-not-an-image", why=f"{_MANIFEST}: {error}"
            ) from error


def chosen(
    index: bytes, document: Callable[[str], bytes | None], platform: Platform, where: str, digest: str | None = None
) -> tuple[ImageConfig, tuple[LayerDescriptor, ...]]:
    """Config and layers of the one image that an OCI layout's index names, or of the one with this digest.

    `document` gives a blob by digest. Raises FetchError.
    """
    try:
        manifests = [entry[0] for entry in map(read_entry, read_index(index, where)) if entry]
    except FetchError as error:
        why = f"{INDEX_FILE}: {error.why}"
        raise FetchError(f"{where} is not an OCI layout", code="fetch-not-a-layout", why=why) from error
    entries = {manifest.digest: manifest.media_type for manifest in manifests}
    required = [entry_digest for entry_digest in entries if digest in (None, entry_digest)]
    if len(required) != 1:
        problem = f"{where} holds {len(required)} images" if digest is None else f"{where} has no image {digest}"
        raise FetchError(
            problem, code="fetch-not-an-image", why=", ".join(entries), fix="name one of them: oci:DIR@DIGEST"
        )
    name, kind = required[0], entries[required[0]]
    for _ in range(_MAX_DEPTH):
        read = read_document(_blob(document, name, where), kind, platform, where)
        if isinstance(read, Manifest):
            return read_config(_blob(document, read.config.digest, where), read, platform, where)
        name, kind = read.digest, read.media_type
    raise FetchError(f"{where} is described in circles", code="fetch-nested-index")


def _blob(document: Callable[[str], bytes | None], digest: str, where: str) -> bytes:
    data = document(digest)
    if data is None or digest_of(data) != digest:
        raise FetchError(
            f"{where} lacks a blob that it names",
            code="fetch-image-incomplete",
            why=f"{digest} is not there" if data is None else "it is damaged",
        )
    return data
