"""Files as they stream by: what is kept of them says what the whole file says, however the stream is cut."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from imagegen.audit import collect, sparse_copy
from imagegen.audit.collect import Collector
from imagegen.audit.examine import examine
from imagegen.audit.model import CodeTarget, File
from tests.support.elf_files import HEADER, IDENT, SECTION, SEGMENT, make_cubin, make_elf, make_fatbin

TARGETS = (CodeTarget("sass", 90), CodeTarget("sass", 100, "f"), CodeTarget("ptx", 80, "", (8, 7)))
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are treated as the libraries of hundreds of MB that they stand for."""
    monkeypatch.setattr(collect, "IN_MEMORY", 0)
    monkeypatch.setattr(collect, "HEAD", 256)
    monkeypatch.setattr("imagegen.audit.examine.HEAD", 256)
    monkeypatch.setattr(sparse_copy, "WORTH_SKIPPING", 8)
    monkeypatch.setattr(sparse_copy, "NAME_BYTES", 256)
    monkeypatch.setattr(sparse_copy, "TABLE_BYTES", 1 << 20)
    monkeypatch.setattr(sparse_copy, "SYMBOL_BYTES", 1000)


def collected(
    data: bytes, cuts: Sequence[int], scratch: Path, *, whole: bool = False
) -> tuple[File, Sequence[tuple[int, int]]]:
    """Return the scan of a file that the collector gets in these pieces, and the ranges that it left out."""
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    with Collector(len(data), scratch, whole=whole) as collector:
        for start, end in pairwise(borders):
            collector.write(data[start:end])
        found = collector.finish("0" * 64, executable=True)
        left_out = collector.copy.holes if collector.copy else ()
        assert collector.partial == bool(left_out)
        return found, left_out


def whole(data: bytes) -> File:
    return examine(data, size=len(data), sha256="0" * 64, executable=True)


@st.composite
def libraries(draw: st.DrawFn) -> bytes:
    """Sound ones: with GPU code or without, with and without a section table, cubins, other files."""
    seed = random.Random(draw(st.integers(0, 1 << 30)))
    fatbin = b"".join(
        make_fatbin([TARGETS[: seed.randint(0, 3)]], seed.randbytes(seed.choice((0, 5, 64, 700))))
        for _ in range(draw(st.integers(0, 4)))
    )
    kind = draw(st.sampled_from(["elf", "elf", "elf", "fatbin", "cubin", "text"]))
    if kind == "elf":
        return make_elf(
            needed=["libc.so.6"],
            undefined=["_Zmissing"],
            exported=[f"name{number}" for number in range(draw(st.integers(0, 20)))],
            fatbin=fatbin,
            relfatbin=fatbin if draw(st.booleans()) else b"",
            filling=draw(st.sampled_from([0, 0, 500])),
        )
    return {"fatbin": fatbin, "cubin": make_cubin(TARGETS[0]), "text": b"import torch\n" * 40}[kind]


@quick
@given(libraries(), st.lists(st.integers(0, 1 << 20), max_size=12))
def test_what_is_kept_says_what_the_file_says(tmp_path: Path, data: bytes, cuts: list[int]) -> None:
    found, left_out = collected(data, cuts, tmp_path)
    assert found == whole(data)
    assert left_out == collected(data, [], tmp_path)[1]


@quick
@given(
    libraries(),
    st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 64), st.sampled_from(["<B", "<H", "<I", "<Q"])),
        max_size=6,
    ),
    st.lists(st.integers(0, 1 << 20), max_size=6),
    st.sampled_from([200, 1000, 2000, 1 << 20]),
)
@example(make_elf(), [(HEADER.size + 8, 1, "<Q")], [], 1 << 20)  # its code begins inside its header
def test_a_hostile_file_is_read_or_unreadable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: bytes,
    harm: list[tuple[int, int, str]],
    cuts: list[int],
    tables: int,
) -> None:
    monkeypatch.setattr(sparse_copy, "TABLE_BYTES", tables)
    spoilt = bytearray(data)
    for at, value, form in harm:
        size = struct.calcsize(form)
        if len(data) >= size:
            struct.pack_into(form, spoilt, at % (len(data) - size + 1), value % (1 << 8 * size))
    found, left_out = collected(bytes(spoilt), cuts, tmp_path)
    expected = whole(bytes(spoilt))
    assert found == expected or (left_out and found.unreadable)
    assert collected(bytes(spoilt), cuts, tmp_path, whole=True)[0] == expected


@quick
@given(st.lists(st.integers(0, 1 << 20), max_size=12))
def test_gpu_code_is_found_in_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: list[int]
) -> None:
    constants, one = random.Random(2).randbytes(9000), make_fatbin([TARGETS], bytes(600))
    code = one + bytes(8) + one  # as linkers align them
    data = make_elf(exported=["name"], fatbin=code, relfatbin=constants)  # where a library's own data would be
    start = data.index(code) - 16
    part = sparse_copy.FileRange(start, data.index(constants) + len(constants), searched=True)
    monkeypatch.setattr(collect, "left_out", lambda *_: [part])
    found, left_out = collected(data, cuts, tmp_path)
    assert found == whole(data)
    assert found.code[0].count == 2
    assert sum(end - at for at, end in left_out) > len(constants) + 2 * 3 * 600 - 100


def test_bytes_one_by_one_are_as_good(tmp_path: Path) -> None:
    data = make_elf(fatbin=make_fatbin([TARGETS, TARGETS[:1]]))
    found, left_out = collected(data, range(len(data)), tmp_path)
    assert (found, left_out) == collected(data, [], tmp_path)
    assert len(left_out) == len(TARGETS) + 1


def test_what_no_loader_loads_is_left_out(tmp_path: Path) -> None:
    data, debugging = make_elf(exported=["name"], fatbin=make_fatbin([TARGETS])), random.Random(1).randbytes(9000)
    table, count = struct.unpack_from("<40xQ12xH", data)
    names_at = table + (count - 1) * SECTION.size + 24  # where the last section, of the names, says where it lies
    (names,) = struct.unpack_from("<Q", data, names_at)
    padded = bytearray(data[:names] + debugging + data[names:])
    struct.pack_into("<Q", padded, 40, table + len(debugging))
    struct.pack_into("<Q", padded, names_at + len(debugging), names + len(debugging))
    with Collector(len(padded), tmp_path) as collector:
        collector.write(bytes(padded))
        assert collector.finish() == examine(bytes(padded), size=len(padded))
        assert collector.partial
    assert whole(bytes(padded)).elf == whole(data).elf


def test_what_is_left_out_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_copy, "TABLE_BYTES", 2000)
    loads = [(4, 0, 4000), (5, 4000, 90_000), (4, 94_000, 9000), (6, 103_000, 8000)]  # flags, offset, size
    rows = [(1, *row) for row in loads] + [(2, 6, 106_000, 300)]
    segments = [SEGMENT.pack(kind, flags, at, at, at, size, size, 8) for kind, flags, at, size in rows]
    head = HEADER.pack(IDENT, 3, 62, 1, 0, 64, 120_000, 0, 64, SEGMENT.size, len(rows), SECTION.size, 10, 9)
    left_out = sparse_copy.left_out(head + b"".join(segments), 120_640)
    assert left_out == [
        (2000, 4000, True),  # after so much of a segment there are no tables
        (4000, 94_000, False),
        (96_000, 103_000, True),
        (105_000, 106_000, True),
        (106_300, 111_000, True),  # but for the dynamic section
        (111_000, 119_744, False),  # for debuggers, but for 256 bytes of names before the section table
    ]
    assert sparse_copy.left_out(head + b"".join(segments)[:-1], 120_640) == []  # not all of that was kept
    one = SEGMENT.pack(1, 5, 0, 0, 0, 119_000, 119_000, 8)
    together = sparse_copy.left_out(head[:56] + struct.pack("<H", 1) + head[58:] + one, 120_640)
    assert together == [(2000, 119_000, True), (119_000, 119_744, False)]


def test_a_stream_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with Collector(1 << 20, tmp_path) as collector:
        collector.write(make_elf())
        kept = collector.copy
    assert isinstance(kept, sparse_copy.Sparse)
    assert kept.file.closed
    assert not list(tmp_path.iterdir())


def test_the_copy_of_a_large_library_takes_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    data = make_elf(exported=["name"], fatbin=make_fatbin([TARGETS] * 4, bytes(1 << 20)))
    with Collector(len(data), tmp_path) as collector:
        for start in range(0, len(data), 1 << 18):
            collector.write(data[start : start + (1 << 18)])
        kept = collector.copy
        assert isinstance(kept, sparse_copy.Sparse)
        assert os.fstat(kept.file.fileno()).st_blocks * 512 < 200_000 < 12 << 20 < len(data)
        assert collector.finish("0" * 64, executable=True) == whole(data)
