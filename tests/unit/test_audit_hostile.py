"""Files that want to hang or fill the machine that reads them."""

from __future__ import annotations

import mmap
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit.examine import examine
from tests.fuzz.binaries import DAMAGED, hold, seeds
from tests.support.elf_files import HEADER, SECTION, make_elf

ANSWER = "read, or a finding with a reason of one line; work bounded by the file's size"


@pytest.mark.parametrize("name", seeds())
def test_the_seeds_are_sound(name: str) -> None:
    file = hold(seeds()[name])
    assert file.unreadable is None
    assert file.elf or file.code


@pytest.mark.fault("Audits", "ELF files and GPU code with fields changed, parts moved, and the end cut off", ANSWER)
@given(DAMAGED)
def test_damaged_files(data: bytes) -> None:
    hold(data)


@given(
    st.sampled_from([b"", b"\x7fELF\x02\x01\x01", b"\x50\xed\x55\xba\x01\x00\x10\x00", b"//"]), st.binary(max_size=300)
)
def test_any_bytes(start: bytes, rest: bytes) -> None:
    hold(start + rest)


@pytest.mark.parametrize("name", seeds())
def test_every_truncation(name: str) -> None:
    data = seeds()[name]
    for end in range(0, len(data), 3):
        hold(data[:end])


LARGE = 1 << 27


def symbols(path: Path) -> None:
    """Claims as many symbols as fit the file."""
    write(path, make_elf(exported=["a"], hashes=["sysv"]), (5, 4, struct.pack("<I", LARGE // 24)))


def buckets(path: Path) -> None:
    write(path, make_elf(exported=["a"]), (0x6FFFFFF6, 0, struct.pack("<I", LARGE // 4 - 1000)))


def many_sections(path: Path) -> None:
    data = make_elf()
    fields = list(HEADER.unpack_from(data))
    fields[6], fields[12], fields[13] = len(data), 0, 0
    first = SECTION.pack(0, 0, 0, 0, 0, (LARGE - len(data)) // 64, 0, 0, 0, 0)
    write(path, HEADER.pack(*fields) + data[HEADER.size :] + first)


def empty_containers(path: Path) -> None:
    path.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * (1 << 17))


def tiny_entries(path: Path) -> None:
    """Nothing but the smallest entries in one container."""
    entry = struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, 0, 0, 0, 1, 8, 90, 0, 0, 0x11, 0, 0)
    path.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, LARGE - 16) + entry * (1 << 17))
    with path.open("r+b") as file:
        file.truncate(LARGE)


def nothing(path: Path) -> None:
    """Zeros to look for code in."""
    write(path, make_elf(sections=False))


def write(path: Path, data: bytes, *edits: tuple[int, int, bytes]) -> None:
    """The file with bytes changed: (type of a section, offset in it, bytes); large, and mostly of nothing."""
    made = bytearray(data)
    for kind, offset, content in edits:
        row = next(row for row in SECTION.iter_unpack(data[HEADER.unpack_from(data)[6] :]) if row[1] == kind)
        made[row[4] + offset : row[4] + offset + len(content)] = content
    with path.open("wb") as file:
        file.write(made)
        file.truncate(LARGE)


@pytest.mark.fault("Audits", "a large file that claims millions of symbols, sections, chains, pieces of code", ANSWER)
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (symbols, "it claims 5592405 symbols"),
        (buckets, "buckets"),
        (many_sections, "sections"),
        (empty_containers, "pieces of GPU code"),
        (tiny_entries, "pieces of GPU code"),
        (nothing, None),
    ],
)
def test_claims_cost_nothing(make: Callable[[Path], None], why: str | None, tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    make(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tracemalloc.start()
        found = examine(data, size=len(data))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 << 20
    assert (found.unreadable is None) if why is None else (why in str(found.unreadable))
    path.unlink()
