"""The form zstd:chunked: the tar comes out as it was, and the table says where each file is."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import tarfile
from collections.abc import Iterator
from typing import Any, cast

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.oci import digest_of
from imagegen.core.store.layout import BlobWriter
from imagegen.image.layers import chunked
from imagegen.image.layers.chunked import crc64, crc_bytes, write

CHUNK = 700
EMPTY = digest_of(b"")


@pytest.fixture(autouse=True, scope="module")
def _small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK", CHUNK)
        yield


class Blob(io.BytesIO):
    """In place of a blob of a store."""

    @property
    def size(self) -> int:
        return self.tell()


def converted(tar: bytes) -> tuple[bytes, str, chunked.TableOfContents]:
    blob = Blob()
    diff_id, contents = write(io.BytesIO(tar), cast("BlobWriter", blob))
    return blob.getvalue(), diff_id, contents


def slow_crc64(data: bytes) -> bytes:
    """Bit by bit, as the definition has it."""
    state = (1 << 64) - 1
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0xD800000000000000 if state & 1 else 0)
    return (state ^ (1 << 64) - 1).to_bytes(8, "big")


PARTS = st.text("ab.é", min_size=1, max_size=4).filter(lambda part: part not in (".", "..")) | st.just("n" * 90)
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
CONTENTS = st.binary(max_size=40) | st.integers(0, 3 * CHUNK).map(lambda size: random.Random(size).randbytes(size))
KINDS = st.sampled_from([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])


@st.composite
def tars(draw: Any) -> bytes:
    """Tars as Python writes them, with every kind of member, each path once."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in draw(st.lists(NAMES, unique=True, max_size=6)):
            info = tarfile.TarInfo(name)
            info.mode, info.mtime = draw(st.sampled_from([0o644, 0o755, 0o1777, 0])), draw(st.integers(0, 1 << 31))
            info.uid, info.gid = draw(st.integers(0, 9)), draw(st.integers(0, 1 << 31))
            if draw(st.booleans()):
                info.pax_headers = {"SCHILY.xattr.user.a": draw(st.text(max_size=5))}
            content = draw(st.none() | CONTENTS)
            if content is None:
                info.type = draw(KINDS)
                if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                    info.linkname = draw(NAMES)
                if info.type == tarfile.CHRTYPE:
                    info.devmajor, info.devminor = 1, draw(st.integers(0, 9))
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Read:
    """A blob, read by its first footer as Podman reads it by the annotations, and by its last as stargz-snapshotter."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        *self.stargz, stargz_magic = struct.unpack("<4Q8s", blob[-40:])
        assert (stargz_magic, struct.unpack("<2L", blob[-48:-40])) == (b"GnUlInUx", (0x184D2A50, 40))
        *numbers, magic = struct.unpack("<7Q8s", blob[:-48][-64:])
        self.table_at, self.table_size, self.table_unpacked, self.version, *self.split_at = numbers
        assert magic == b"GNUlInUx"
        self.table = self._skippable(self.table_at, self.table_size, self.table_unpacked)
        self.document = json.loads(self.table)
        split = self._skippable(*self.split_at)
        self.lines = [json.loads(line) for line in split.splitlines()]
        self.split_digest = digest_of(blob[self.split_at[0] :][: self.split_at[1]])

    def _skippable(self, offset: int, size: int, unpacked: int) -> bytes:
        assert struct.unpack("<2L", self.blob[offset - 8 : offset]) == (0x184D2A50, size)
        data = zstandard.ZstdDecompressor().decompressobj().decompress(self.blob[offset : offset + size])
        assert len(data) == unpacked
        return data

    def frame(self, offset: int) -> tuple[bytes, int]:
        """One frame alone, and the offset behind it."""
        one = zstandard.ZstdDecompressor().decompressobj()
        data = one.decompress(self.blob[offset:])
        assert one.eof
        return data, len(self.blob) - len(one.unused_data)

    def files(self) -> dict[str, bytes]:
        """The contents of each regular file, from its own frames alone."""
        found: dict[str, bytes] = {}
        entries = self.document["entries"]
        for at, entry in enumerate(entries):
            if entry["type"] != "reg" or not entry.get("size"):
                continue
            chunks = [entry]
            for following in entries[at + 1 :]:
                if following["type"] != "chunk":
                    break
                assert following["name"] == entry["name"]
                chunks.append(following)
            data, end = b"", 0
            for chunk in chunks:
                part, end = self.frame(chunk["offset"])
                assert chunk.get("chunkOffset", 0) == len(data)
                assert chunk.get("chunkSize", len(part)) == len(part)
                assert chunk.get("chunkDigest", digest_of(part)) == digest_of(part)
                assert ("chunkDigest" in chunk) == (entry["size"] > CHUNK)
                data += part
            assert (entry["endOffset"], chunks[-1]["endOffset"]) == (end, end)
            assert (len(data), digest_of(data)) == (entry["size"], entry["digest"])
            found[entry["name"]] = data
        return found


@given(tars())
def test_any_tar_comes_out_as_it_was(tar: bytes) -> None:
    blob, diff_id, contents = converted(tar)
    assert diff_id == digest_of(tar)
    assert zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True).read() == tar
    read = Read(blob)
    assert (contents.table.offset, contents.table.size, contents.table.unpacked) == (
        read.table_at, read.table_size, read.table_unpacked,
    )  # fmt: skip
    assert contents.digest == digest_of(blob[read.table_at :][: read.table_size])
    assert read.document["version"] == read.version == 1
    assert read.stargz == [read.table_at, read.table_size, read.table_unpacked, 1]
    assert contents.unpacked_digest == digest_of(read.table)
    assert read.document["tarSplitDigest"] == read.split_digest
    with tarfile.open(fileobj=io.BytesIO(tar)) as theirs:
        expected = {each.name: theirs.extractfile(each).read() for each in theirs if each.isreg() and each.size}  # type: ignore[union-attr]
    assert read.files() == expected


@given(tars())
def test_tar_split_gives_the_tar_again(tar: bytes) -> None:
    """As tar-split's assembler and Podman's check of the table read it."""
    read = Read(converted(tar)[0])
    files, out, padding, names = read.files(), b"", 0, []
    assert [line["position"] for line in read.lines] == list(range(len(read.lines)))
    for line in read.lines:
        payload = base64.b64decode(line["payload"] or "")
        if line["type"] == 2:
            out += payload
            if header := payload[padding:].rstrip(b"\0"):
                header += bytes(-len(header) % 512)
                with tarfile.open(fileobj=io.BytesIO(header + bytes(1024)), mode="r:") as one:
                    (member,) = [one.next()]
                    assert member
                    names.append(f"{member.name}/" if member.isdir() else member.name)
            padding = 0
        elif line["size"] and line["name"] in files:
            data = files[line["name"]]
            assert (len(data), slow_crc64(data)) == (line["size"], payload)
            out += data
            padding = -len(data) % 512
    assert out == tar
    assert names == [each["name"] for each in read.document["entries"] if each["type"] != "chunk"]


@given(tars())
def test_entries_have_what_the_headers_have(tar: bytes) -> None:
    entries = [each for each in Read(converted(tar)[0]).document["entries"] if each["type"] != "chunk"]
    with tarfile.open(fileobj=io.BytesIO(tar)) as theirs:
        for entry, member in zip(entries, theirs, strict=True):
            found = tuple(entry.get(name, 0) for name in ("mode", "size", "uid", "gid", "devMajor", "devMinor"))
            assert found == (member.mode, member.size, member.uid, member.gid, member.devmajor, member.devminor)
            assert entry.get("linkName", "") == member.linkname
            xattrs = {
                f"SCHILY.xattr.{name}": base64.b64decode(value).decode()
                for name, value in entry.get("xattrs", {}).items()
            }
            assert xattrs == {name: value for name, value in member.pax_headers.items() if name.startswith("SCHILY")}


@given(tars())
def test_the_same_tar_gives_the_same_bytes(tar: bytes) -> None:
    assert converted(tar) == converted(tar)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_the_crc_is_that_of_the_definition(data: bytes, cut: int) -> None:
    assert crc_bytes(crc64(data[cut:], crc64(data[:cut]))) == slow_crc64(data)


def test_the_crc_has_the_published_check_value() -> None:
    """CRC-64/GO-ISO of "123456789", in the catalogue of parametrised CRC algorithms."""
    assert crc_bytes(crc64(b"123456789")).hex() == "b90956c775a41001"


def test_long_contents_have_the_crc_of_their_parts() -> None:
    data = random.Random(3).randbytes(100_003)
    state = (1 << 64) - 1
    for start in range(0, len(data), 97):
        state = crc64(data[start : start + 97], state)
    assert crc64(data) == state
