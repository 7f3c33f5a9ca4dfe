"""Layers in the form zstd:chunked: each file in frames of its own, and a table of contents behind them.

A client that knows the form fetches the table and then only the files and chunks that it lacks (Podman, CRI-O) or that
a container reads (stargz-snapshotter of containerd); for all others the blob is a layer like others, since skippable
frames hold nothing of the tar:

    frame     headers of the tar up to the first file with contents
    frame...  the contents of that file: one frame for every CHUNK bytes
    frame     padding and headers up to the next file; and so on, up to the end of the tar
    skippable table of contents: JSON, compressed
    skippable tar-split: every byte of the tar that is no file's contents, from which a client makes the tar again
    skippable footer: where the two are
    skippable footer that stargz-snapshotter reads: where the table is

The manifest names the table's digest in an annotation; a client that verifies the table needs no other digest of the
blob. containers/storage (Podman, CRI-O) reads its own annotations and rejects a manifest with another one, which
stargz-snapshotter reads: an image as zstd:stargz has the blobs of zstd:chunked and another manifest.

Sources, read 2026-11-26: RFC 8878, section 3.1.2 (skippable frames); github.com/containers/storage at 83cf5746,
pkg/chunked (the table's fields, footer and annotations; the client's checks, which are stricter than the form);
github.com/containerd/stargz-snapshotter at v0.12.0 and 7cf47cba, estargz/zstdchunked and fs/fs.go (its footer and
annotation); github.com/vbatts/tar-split at ced2b07a, tar/storage and tar/asm (the JSON of tar-split, and its CRC-64).
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO

import zstandard

from imagegen.core.layer_tar import Bounded, members
from imagegen.core.oci import digest_of
from imagegen.core.store.cache import StoredBlob
from imagegen.core.store.layout import BlobWriter
from imagegen.core.types import Compression, Digest, Size
from imagegen.image.layers.layer import Layer

LEVEL = 3
TABLE_LEVEL = 9  # of table and tar-split
CHUNK = 4 << 20  # bytes of a file's contents that one frame holds at most
CHUNKED = (
    f"zstd:chunked {'.'.join(str(part) for part in zstandard.ZSTD_VERSION)} level {LEVEL} chunks of {CHUNK >> 20} MiB, "
    f"two footers (zstandard {zstandard.__version__})"
)

_ANNOTATION = "io.github.containers.zstd-chunked."
_STARGZ_ANNOTATION = "containerd.io/snapshot/stargz/toc.digest"
_VERSION = 1  # of the table; it is also the type of a table that the footer and an annotation name
_SKIPPABLE = 0x184D2A50
_MAGIC = b"GNUlInUx"
_STARGZ_MAGIC = b"GnUlInUx"
_XATTR = "SCHILY.xattr."  # prefix of the pax records that hold extended attributes
_READ = 1 << 20
_TYPES = {
    tarfile.REGTYPE: "reg",
    tarfile.AREGTYPE: "reg",
    tarfile.LNKTYPE: "hardlink",
    tarfile.SYMTYPE: "symlink",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.DIRTYPE: "dir",
    tarfile.FIFOTYPE: "fifo",
}


@dataclass(frozen=True)
class SkippableFrame:
    """The content of a skippable frame: its offset in the blob, its bytes, and its bytes when decompressed."""

    offset: Size
    size: Size
    unpacked: Size

    def __str__(self) -> str:
        return f"{self.offset}:{self.size}:{self.unpacked}"


@dataclass(frozen=True)
class TableOfContents:
    """The place of a layer's table of contents and tar-split; the table's digest, compressed and uncompressed."""

    digest: Digest
    unpacked_digest: Digest
    table: SkippableFrame
    tar_split: SkippableFrame

    @property
    def annotations(self) -> dict[str, str]:
        """Return the annotations of the layer's descriptor that containers/storage reads."""
        return {
            f"{_ANNOTATION}manifest-checksum": self.digest,
            f"{_ANNOTATION}manifest-position": f"{self.table}:{_VERSION}",
            f"{_ANNOTATION}tarsplit-position": str(self.tar_split),
        }

    @property
    def stargz_annotations(self) -> dict[str, str]:
        """Return the annotations of the layer's descriptor that containerd passes to stargz-snapshotter."""
        return {_STARGZ_ANNOTATION: self.unpacked_digest}


@dataclass(frozen=True)
class ChunkedBlob(StoredBlob):
    """A blob of the store in the form zstd:chunked."""

    contents: TableOfContents

    def as_layer(self, layer: Layer, compression: Compression) -> ChunkedLayer:
        """Return `layer` with this blob, which unpacks to the same bytes; `compression` is one of CHUNKED_LAYERS."""
        fields = vars(layer) | {"digest": self.digest, "size": self.size}
        return CHUNKED_LAYERS[compression](**fields, contents=self.contents)


@dataclass(frozen=True)
class ChunkedLayer(Layer):
    """A layer in the form zstd:chunked."""

    contents: TableOfContents = field(kw_only=True)

    @property
    def blob(self) -> ChunkedBlob:
        """Return the layer's blob, without what is known of the layer."""
        return ChunkedBlob(self.digest, self.size, self.contents)

    def as_dict(self) -> dict[str, Any]:
        """Return the descriptor with its annotations."""
        return super().as_dict() | {"annotations": self.contents.annotations}


@dataclass(frozen=True)
class StargzLayer(ChunkedLayer):
    """A layer in the form zstd:chunked, in a manifest for stargz-snapshotter."""

    def as_dict(self) -> dict[str, Any]:
        """Return the descriptor with its annotations."""
        return super().as_dict() | {"annotations": self.contents.stargz_annotations}


CHUNKED_LAYERS: Mapping[Compression, type[ChunkedLayer]] = {"zstd:chunked": ChunkedLayer, "zstd:stargz": StargzLayer}


def write(tar: BinaryIO, blob: BlobWriter) -> tuple[str, TableOfContents]:
    """Write the layer's uncompressed `tar` into `blob`; return its diff_id, and where its table of contents is.

    Equal tars give equal blobs. The tar is as imagegen writes them: directories end in a slash, no path occurs twice,
    times are whole seconds. Raises tarfile.ReadError for what is no tar, and what reading `tar` raises.
    """
    source, frames, split = _Source(tar), _Frames(blob), _TarSplit()
    entries: list[dict[str, Any]] = []
    headers: list[bytes] = []
    for member in members(tarfile.TarFile(fileobj=source, tarinfo=Bounded)):  # type: ignore[arg-type]
        headers.append(source.take())
        split.segment(headers[-1])
        entries.append(_entry(member))
        checksum = None
        if member.isreg() and member.size:
            frames.add(b"".join(headers))
            headers.clear()
            checksum = _write_contents(source, member.size, frames, entries)
        split.file(entries[-1]["name"], member.size, checksum)
    headers.append(source.rest())
    split.segment(headers[-1])
    frames.add(b"".join(headers))
    return source.diff_id(), _write_table(frames, entries, split)


def _write_contents(source: _Source, size: int, frames: _Frames, entries: list[dict[str, Any]]) -> int:
    """Write a file's contents and complete its entry, the last one; return the CRC-64 of the contents."""
    first = entry = entries[-1]
    whole, checksum = hashlib.sha256(), _CRC_START
    for start in range(0, size, CHUNK):
        chunk = source.contents(min(CHUNK, size - start))
        whole.update(chunk)
        checksum = crc64(chunk, checksum)
        if start:
            entry = {"type": "chunk", "name": first["name"], "chunkOffset": start}
            entries.append(entry)
        if size > CHUNK:
            entry |= {"chunkSize": len(chunk), "chunkDigest": digest_of(chunk)}
        entry["offset"] = frames.add(chunk)
    first["digest"] = f"sha256:{whole.hexdigest()}"
    first["endOffset"] = entry["endOffset"] = frames.offset
    return checksum


def _write_table(frames: _Frames, entries: list[dict[str, Any]], split: _TarSplit) -> TableOfContents:
    """Write what stands behind the tar: table of contents, tar-split and footer."""
    held, unpacked = split.finish()
    document = {"version": _VERSION, "entries": entries, "tarSplitDigest": digest_of(held)}
    table = json.dumps(document, separators=(",", ":")).encode()
    packed = zstandard.ZstdCompressor(level=TABLE_LEVEL, threads=0).compress(table)
    found = TableOfContents(
        digest_of(packed),
        digest_of(table),
        SkippableFrame(frames.skippable(packed), len(packed), len(table)),
        SkippableFrame(frames.skippable(held), len(held), unpacked),
    )
    one, two = found.table, found.tar_split
    numbers = (one.offset, one.size, one.unpacked, _VERSION, two.offset, two.size, two.unpacked)
    frames.skippable(struct.pack("<7Q", *numbers) + _MAGIC)
    frames.skippable(struct.pack("<4Q", *numbers[:4]) + _STARGZ_MAGIC)  # the blob's end, where it is looked for
    return found


def _entry(member: tarfile.TarInfo) -> dict[str, Any]:
    """Return a member's entry in the table; fields that are zero or empty are left out, as clients expect them."""
    if member.type not in _TYPES:
        raise tarfile.ReadError(f"{member.name}: a member of type {member.type!r}")
    attributes = {
        name.removeprefix(_XATTR): base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()
        for name, value in member.pax_headers.items()
        if name.startswith(_XATTR)
    }
    fields = {
        "linkName": member.linkname,
        "mode": member.mode,
        "size": member.size,
        "uid": member.uid,
        "gid": member.gid,
        "modtime": datetime.fromtimestamp(member.mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "devMajor": member.devmajor,
        "devMinor": member.devminor,
        "xattrs": attributes,
    }
    name = f"{member.name}/" if member.isdir() else member.name
    return {"type": _TYPES[member.type], "name": name} | {key: value for key, value in fields.items() if value}


class _Source:
    """The tar, as tarfile reads it; all that is no file's contents is held until it is taken."""

    def __init__(self, tar: BinaryIO) -> None:
        self._tar, self._diff = tar, hashlib.sha256()
        self._held = bytearray()
        self._offset = 0

    def read(self, size: int) -> bytes:
        data = self.contents(size)
        self._held += data
        return data

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int) -> None:
        """Read on to `offset`: tarfile seeks only over the padding behind contents."""
        self.read(offset - self._offset)

    def contents(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end of the tar; they are not held."""
        data = self._tar.read(size)
        self._diff.update(data)
        self._offset += len(data)
        return data

    def take(self) -> bytes:
        """Return what was held, and hold it no longer."""
        data, self._held = bytes(self._held), bytearray()
        return data

    def rest(self) -> bytes:
        """Return what is held and follows the last member. Raises ReadError where that is more than padding."""
        while self.read(_READ):
            pass
        if self._held.strip(b"\0"):
            raise tarfile.ReadError("more than padding follows the last member")
        return self.take()

    def diff_id(self) -> str:
        return f"sha256:{self._diff.hexdigest()}"


class _Frames:
    """Writes frames into a blob."""

    def __init__(self, blob: BlobWriter) -> None:
        self._blob = blob
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, threads=0, write_checksum=False)

    @property
    def offset(self) -> int:
        """The offset of the next frame, in bytes."""
        return self._blob.size

    def add(self, content: bytes) -> int:
        """Compress `content` into a frame of its own; return the frame's offset."""
        start = self._blob.size
        self._blob.write(self._zstd.compress(content))
        return start

    def skippable(self, content: bytes) -> int:
        """Write `content` as a skippable frame; return the content's offset."""
        self._blob.write(struct.pack("<2L", _SKIPPABLE, len(content)))
        start = self._blob.size
        self._blob.write(content)
        return start


class _TarSplit:
    """The lines of tar-split, compressed: of each member its header with the padding before it, then its file."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=TABLE_LEVEL, threads=0).compressobj()
        self._parts: list[bytes] = []
        self._lines = self._size = 0

    def segment(self, content: bytes) -> None:
        self._line({"type": 2, "payload": base64.b64encode(content).decode()})

    def file(self, name: str, size: int, checksum: int | None) -> None:
        """Add the file of the header before; without contents it has no CRC-64."""
        payload = None if checksum is None else base64.b64encode(crc_bytes(checksum)).decode()
        self._line({"type": 1, "name": name, "size": size, "payload": payload})

    def finish(self) -> tuple[bytes, int]:
        """Return the compressed lines, and how many bytes they have uncompressed."""
        self._parts.append(self._zstd.flush())
        return b"".join(self._parts), self._size

    def _line(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry | {"position": self._lines}, separators=(",", ":")).encode() + b"\n"
        self._parts.append(self._zstd.compress(line))
        self._lines += 1
        self._size += len(line)


_CRC_START = (1 << 64) - 1
_CRC_BLOCK = 256 << 10  # bytes: fastest, numbers of this size stay in a processor's cache


def crc64(data: bytes, state: int = _CRC_START) -> int:
    """Return the register of the reflected CRC-64 of ISO 3309 (x^64 + x^4 + x^3 + x + 1) after `data`.

    No library of the standard one has this CRC, and a loop over bytes would take a hundred times as long: whole numbers
    do the work. Bit i of a number is a coefficient of a polynomial, the first bit of the highest degree. For K a power
    of two, x^(64 K) equals x^(4 K) + x^(3 K) + x^K + 1, since squaring adds no mixed terms: so the first 60 K bits can
    be added to what follows them at four places, and each round halves the number.
    """
    for start in range(0, len(data), _CRC_BLOCK):
        state = _crc64_of_block(data[start : start + _CRC_BLOCK], state)
    return state


def _crc64_of_block(block: bytes, state: int) -> int:
    value, size = int.from_bytes(block, "little") ^ state, 8 * len(block) + 64
    while size > 64:
        k = 1 << max(0, (size // 124).bit_length() - 1)
        first = min(60 * k, size - 64)
        low = value & ((1 << first) - 1)
        folded = low ^ low << k ^ low << 3 * k ^ low << 4 * k
        value = value >> first ^ folded << 60 * k - first
        size -= first
    return value


def crc_bytes(state: int) -> bytes:
    """Return the CRC-64 of a register, as tar-split has it."""
    return (state ^ _CRC_START).to_bytes(8, "big")
