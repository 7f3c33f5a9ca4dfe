"""ZIP files that two readers would read in two ways are refused; the others come out byte for byte."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given

from imagegen.audit.readers.installation import site_packages
from imagegen.audit.readers.wheel import Wheel
from imagegen.core.errors import WheelError
from tests.fuzz.crooked import Crooked, Part, wheel, zip64
from tests.fuzz.invariants import PYTHON, hold, hold_crooked
from tests.fuzz.strategies import CROOKED
from tests.support.wheels import FILENAME, seeds

FOUND = Path(__file__).parents[1] / "fuzz" / "found"
WHOLE = "refused: names the wheel, and the member where it is one's fault"
GOOD = Part("demo/x.bin", b"data" * 100)
OTHER = Part("demo/y.bin", b"more" * 100)


def refusal(path: Path, crooked: Crooked) -> str:
    path.write_bytes(crooked.bytes())
    with pytest.raises(WheelError) as caught:
        read_all(path)
    assert FILENAME in str(caught.value)
    return str(caught.value)


def read_all(path: Path) -> None:
    with Wheel(path, FILENAME) as opened:
        for name in opened.members:
            for _ in opened.chunks(name):
                pass


def unicode_path(name: str) -> bytes:
    return struct.pack("<2HBL", 0x7075, 5 + len(name.encode()), 1, 0) + name.encode()


def quine() -> Part:
    """The inner part of an overlapping bomb: its data are the next member's header and data."""
    inner = wheel(Part("demo/z.bin", bytes(10_000))).bytes()
    return Part("demo/x.bin", inner[: inner.index(b"PK\x03\x04", 4)], stored=True)


LIES = [
    ("truncated", Crooked([]), "lacks|dist-info"),
    ("a gap between members", wheel(Part("demo/x.bin", b"1", behind=b"hidden"), OTHER), "contradicts"),
    ("a gap before the directory", wheel(GOOD, gap=b"hidden"), "contradicts"),
    ("data before the first member", wheel(Part("demo/x.bin", before=b"#!/bin/sh\n")), "before its first"),
    ("data behind the end", wheel(GOOD, tail=b"x"), "behind its end"),
    ("a second zip file behind the first", wheel(GOOD, tail=wheel(OTHER).bytes()), "before its first|not where"),
    ("a zip file in the comment", wheel(GOOD, comment=wheel(OTHER).bytes()), "before its first|not where"),
    ("an end record that lies about its comment", wheel(GOOD, comment=b"abc", end={"comment": 2}), "behind its end"),
    ("fewer members than the directory holds", wheel(GOOD, OTHER, end={"count": 4}), "more than it counts"),
    ("more members than the directory holds", wheel(GOOD, end={"count": 9}), "directory is damaged"),
    ("a directory elsewhere", wheel(GOOD, end={"start": 0}), "not where its end record says"),
    ("one of several volumes", wheel(GOOD, end={"disk": 1}), "several volumes"),
    ("one member twice in the directory", wheel(Part("demo/x.bin", b"1", repeat=2)), "overlap|one name"),
    ("another name in the own header", wheel(Part("demo/x.bin", local={"name": b"demo/y.bin"})), "contradicts"),
    ("another size in the own header", wheel(Part("demo/x.bin", b"12", local={"size": 3})), "contradicts"),
    ("another method in the own header", wheel(Part("demo/x.bin", b"12", local={"method": 0})), "contradicts"),
    ("another CRC in the own header", wheel(Part("demo/x.bin", b"12", local={"crc": 3})), "contradicts"),
    ("encrypted in the own header alone", wheel(Part("demo/x.bin", b"12", local={"flags": 0x801})), "contradicts"),
    ("a wrong CRC", wheel(Part("demo/x.bin", b"1", local={"crc": 3}, central={"crc": 3})), "damaged"),
    (
        "a size too small",
        wheel(Part("demo/x.bin", b"12", local={"size": 1}, central={"size": 1})),
        "RECORD says|damaged",
    ),
    (
        "a size too large",
        wheel(Part("demo/x.bin", b"12", local={"size": 9}, central={"size": 9})),
        "RECORD says|damaged",
    ),
    ("a bomb with a small size", wheel(Part("demo/x.bin", bytes(1 << 22), central={"size": 9})), "RECORD says|damaged"),
    ("a size beyond the file", wheel(Part("demo/x.bin", b"1", central={"packed": 1 << 30})), "overlap"),
    ("an offset beyond the directory", wheel(Part("demo/x.bin", b"1", central={"offset": 1 << 30})), "overlap|before"),
    ("overlapping members", wheel(quine(), OTHER, Part("demo/z.bin", central={"offset": 40})), "overlap"),
    ("a member inside another's data", wheel(GOOD, Part("demo/z.bin", b"1", central={"offset": 3})), "overlap"),
    (
        "data behind the compressed data",
        wheel(Part("demo/x.bin", b"1", central={"packed": 9}, behind=b"123456")),
        "contra",
    ),
    (
        "data behind the compressed data, declared",
        wheel(Part("demo/x.bin", b"1", local={"packed": 9}, central={"packed": 9}, behind=b"123456")),
        "end early or too late",
    ),
    (
        "sizes behind the data that lie",
        wheel(Part("demo/x.bin", b"12", streamed=True, central={"crc": 3})),
        "contradicts",
    ),
    ("a name not marked as UTF-8", wheel(Part("demo/é", central={"flags": 0}, local={"flags": 0})), "not UTF-8"),
    ("a name that is not UTF-8", wheel(Part("demo/\udce9")), "not UTF-8"),
    ("a surrogate in a name", wheel(Part("demo/\udced\udca0\udc80")), "not UTF-8"),
    ("a NUL in a name", wheel(Part("demo/x.py\0.txt")), "not portable"),
    ("a whiteout of layers", wheel(Part("demo/.wh..wh..opq")), "hides files"),
    ("folders in folders without end", wheel(Part("a/" * 150 + "x")), "leaves the wheel"),
    ("a second name", wheel(Part("demo/x", central={"extra": unicode_path("demo/y")})), "two names"),
    ("a second name in the own header", wheel(Part("demo/x", local={"extra": unicode_path("demo/y")})), "contradicts"),
    ("extra fields that run over", wheel(Part("demo/x", central={"extra": b"\1\0\xff\0"})), "extra fields"),
    ("two zip64 fields", wheel(Part("demo/x", central={"extra": zip64(1) + zip64(2)})), "extra fields"),
    ("zip64 sizes without the field", wheel(Part("demo/x", b"1", central={"packed": 0xFFFFFFFF})), "overlap"),
    (
        "zip64 sizes that lie",
        wheel(Part("demo/x", b"1", central={"size": 0xFFFFFFFF, "extra": zip64(7)})),
        "RECORD|contra",
    ),
    (
        "zip64: another offset",
        wheel(Part("demo/x", b"1", central={"offset": 0xFFFFFFFF, "extra": zip64(7)})),
        "overlap|before",
    ),
    ("zip64 end records that differ", wheel(GOOD, wide=True, end={"count": 3}), "end records differ"),
    ("a zip64 end record elsewhere", wheel(GOOD, wide=True, wide_end={"at": 0}), "not where it should be"),
    ("a zip64 end record of many volumes", wheel(GOOD, wide=True, wide_end={"disks": 2}), "not where it should be"),
    ("a zip64 end record with more in it", wheel(GOOD, wide=True, wide_end={"length": 99}), "record is damaged"),
    ("a zip64 count of members that lies", wheel(GOOD, wide=True, wide_end={"count": 1 << 40}), "too many members"),
    ("a zip64 directory of exabytes", wheel(GOOD, wide=True, wide_end={"size": 1 << 60}), "not where its end record"),
]


def row(said: str) -> str:
    if "UTF-8" in said or "name" in said or "surrogate" in said:
        return "names that are not UTF-8 or not marked as such, with a NUL, or two names for a member"
    if "zip64" in said:
        return "zip64 fields that lack, lie, contradict or run over"
    if any(word in said for word in ("behind", "before", "gap", "comment", "inside", "overlap", "twice", "second")):
        return "data before, between or behind the members, a second zip file or directory, overlapping members"
    return "a member's own header, size, CRC-32 or place that contradicts the directory"


@pytest.mark.parametrize(
    ("crooked", "said"),
    [pytest.param(lie, said, id=name, marks=pytest.mark.fault("Wheels", row(name), WHOLE)) for name, lie, said in LIES],
)
def test_lies_are_refused(tmp_path: Path, crooked: Crooked, said: str) -> None:
    assert re.search(said, refusal(tmp_path / "w", crooked))


@pytest.mark.parametrize(
    "honest",
    [
        wheel(GOOD, OTHER),
        wheel(GOOD, comment=b"a comment with PK in it"),
        wheel(GOOD, wide=True),
        wheel(Part("demo/x", b"1", stored=True), Part("demo/dir/", mode=0o40755), Part("demo/dir/y", b"2")),
        wheel(Part("demo/x", b"12", streamed=True), Part("demo/é", b"2", streamed=True)),
        wheel(Part("demo/é", b"1", central={"extra": unicode_path("demo/é")})),
        wheel(Part("demo/x", b"1", central={"extra": b"\0\0\0"}, local={"extra": b"\xca\xfe\0\0"})),
        wheel(
            Part(
                "demo/x",
                b"1",
                stored=True,
                central={"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF, "extra": zip64(1, 1)},
                local={"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF, "extra": zip64(1, 1)},
            )
        ),
    ],
)
def test_what_is_odd_but_clear_is_read(tmp_path: Path, honest: Crooked) -> None:
    (tmp_path / "w").write_bytes(honest.bytes())
    content = hold(tmp_path / "w")
    assert content is not None
    for part in honest.parts:
        if not part.name.endswith(("/", "RECORD")):
            assert content[f"{site_packages(PYTHON)}/{part.name}"] == part.data


@pytest.mark.fault("Wheels", "a wheel cut off at any byte", "refused: names the wheel")
def test_a_wheel_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = wheel(GOOD, wide=True).bytes()
    for length in range(len(whole)):
        (tmp_path / "w").write_bytes(whole[:length])
        with pytest.raises(WheelError):
            Wheel(tmp_path / "w", FILENAME)


def test_a_real_zip64_wheel_is_read(tmp_path: Path) -> None:
    """70 000 members, written by zipfile: the count alone needs zip64."""
    parts = [(f"demo/{number}", b"") for number in range(70_000)]
    empty = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    own = [(part.name, part.data) for part in wheel().parts[:2]]
    record = "".join(f"{name},sha256={empty},0\n" for name, _ in parts) + wheel().parts[2].data.decode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as writer:
        for name, data in [*parts, *own, ("demo-1.0.dist-info/RECORD", record.encode())]:
            writer.writestr(zipfile.ZipInfo(name), data)
    (tmp_path / "w").write_bytes(out.getvalue())
    with Wheel(tmp_path / "w", FILENAME) as opened:
        assert len(opened.members) == 70_003
        assert opened.read("demo/69999") == b""


def test_what_fuzzing_found_stays_fixed(tmp_path: Path) -> None:
    for name, data in {**seeds(tmp_path), **{file.name: file.read_bytes() for file in FOUND.glob("*.whl")}}.items():
        (tmp_path / "w").write_bytes(data)
        assert (hold(tmp_path / "w") is None) == (name not in seeds(tmp_path))


@given(crooked=CROOKED)
def test_no_archive_gives_more_than_it_declares(tmp_path_factory: pytest.TempPathFactory, crooked: Crooked) -> None:
    hold_crooked(tmp_path_factory.getbasetemp() / "crooked", crooked)


def test_structures_are_read_as_zipfile_reads_them(tmp_path: Path) -> None:
    crooked = wheel(GOOD, OTHER, wide=True)
    (tmp_path / "w").write_bytes(crooked.bytes())
    with zipfile.ZipFile(tmp_path / "w") as other:
        assert other.testzip() is None
        assert {info.CRC for info in other.infolist()} == {zlib.crc32(part.data) for part in crooked.parts}
