"""Layers are a function of their contents."""

from __future__ import annotations

import io
import tarfile

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.image_format import EPOCH
from imagegen.image.layers.codec import FRAME, LayerSink
from imagegen.image.layers.tar import TarWriter
from imagegen.oci.documents import digest_of

names = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=120).filter(
    lambda name: name not in (".", "..")
)
trees = st.dictionaries(st.lists(names, min_size=1, max_size=4).map("/".join), st.binary(max_size=2000), max_size=8)


def write(tree: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    tar = TarWriter(out)
    for path in sorted(tree):
        tar.file("/opt/" + path, len(tree[path]), [tree[path]], executable=len(tree[path]) % 2 == 0)
    tar.link("/opt/link", "target")
    tar.close()
    return out.getvalue()


@given(trees)
def test_what_goes_in_comes_out(tree: dict[str, bytes]) -> None:
    with tarfile.open(fileobj=io.BytesIO(write(tree))) as tar:
        members = tar.getmembers()
        files = {m.name.removeprefix("opt/"): tar.extractfile(m).read() for m in members if m.isfile()}
        assert files == tree
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", EPOCH)}
    assert all(m.mode == 0o755 for m in members if m.isdir())
    directories = [m.name for m in members if m.isdir()]
    assert len(directories) == len(set(directories))
    seen: set[str] = set()
    for member in members:  # a parent always comes before its children
        parent = member.name.rpartition("/")[0]
        assert parent == "" or parent in seen
        seen.add(member.name)


@given(
    name=st.text(
        st.characters(min_codepoint=33, max_codepoint=0x17F, exclude_characters="/"), min_size=80, max_size=130
    )
    # The length of a record of three digits or four.
    | st.integers(975, 1000).map(lambda length: "x" * length),
    size=st.one_of(st.integers(0, 1 << 20), st.integers((1 << 33) - 2, (1 << 33) + 2)),
    kind=st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE]),
    mode=st.sampled_from([0o644, 0o755]),
)
def test_headers_are_the_standard_librarys(name: str, size: int, kind: bytes, mode: int) -> None:
    written = io.BytesIO()
    TarWriter(written).header(name, kind, mode=mode, size=size)
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.mtime = kind, mode, size, EPOCH
    assert written.getvalue() == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def test_a_file_of_another_size_is_refused() -> None:
    tar = TarWriter(io.BytesIO())
    with pytest.raises(ValueError, match="4 bytes instead of 3"):
        tar.file("/x", 3, [b"four"])


STREAM = b"".join(b"%d line\n" % (n * n) for n in range(300_000))  # more than one frame


def blob(sizes: list[int]) -> tuple[str, bytes]:
    """STREAM, written in pieces of these sizes and a last one: its diff_id, and the blob."""
    out, start = io.BytesIO(), 0
    sink = LayerSink(out)
    for size in sizes:
        sink.write(STREAM[start : start + size])
        start += size
    sink.write(STREAM[start:])
    return sink.close(), out.getvalue()


def test_a_blob_is_the_stream_compressed() -> None:
    diff_id, data = blob([])
    assert len(STREAM) > FRAME
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        assert reader.read() == STREAM
    assert diff_id == digest_of(STREAM)


WHOLE = blob([])


@given(cuts=st.lists(st.integers(0, 1_500_000), max_size=12))
def test_blobs_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    assert blob(cuts) == WHOLE
