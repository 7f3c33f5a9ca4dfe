"""The parts of ELF files that the loader reads, each way to count symbols, and files that are not ELF."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import pytest

from imagegen.audit import elf
from imagegen.audit.model import Elf
from imagegen.audit.window import Unreadable
from tests.support.elf_files import (
    AARCH64,
    HEADER,
    HIDDEN,
    INTERNAL,
    LOCAL,
    PROTECTED,
    SECTION,
    SEGMENT,
    SYMBOL,
    UNIQUE,
    WEAK,
    X86_64,
    Symbol,
    make_elf,
    make_fatbin,
)
from tests.support.golden import Golden


def header(data: bytes, **fields: int) -> bytes:
    """The file with other values in its header."""
    names = ("ident", "type", "machine", "version", "entry", "phoff", "shoff", "flags", "size", "phentsize", "phnum")
    names = (*names, "shentsize", "shnum", "shstrndx")
    values: dict[str, Any] = dict(zip(names, HEADER.unpack_from(data), strict=True))
    return HEADER.pack(*{**values, **fields}.values()) + data[HEADER.size :]


def segment(data: bytes, kind: int, **fields: int) -> bytes:
    """The file with other values in its first segment of a kind."""
    made = bytearray(data)
    start, count = HEADER.unpack_from(data)[5], HEADER.unpack_from(data)[10]
    for at in range(start, start + count * SEGMENT.size, SEGMENT.size):
        row = dict(
            zip(
                ("type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz", "align"),
                SEGMENT.unpack_from(data, at),
                strict=True,
            )
        )
        if row["type"] == kind:
            SEGMENT.pack_into(made, at, *{**row, **fields}.values())
            return bytes(made)
    raise AssertionError(kind)


def section_row(data: bytes, kind: int, **fields: int) -> bytes:
    """The file with other values in its first section of a type."""
    made = bytearray(data)
    start, count = HEADER.unpack_from(data)[6], HEADER.unpack_from(data)[12]
    for at in range(start, start + count * SECTION.size, SECTION.size):
        names = ("name", "type", "flags", "addr", "offset", "size", "link", "info", "align", "entsize")
        row = dict(zip(names, SECTION.unpack_from(data, at), strict=True))
        if row["type"] == kind:
            SECTION.pack_into(made, at, *{**row, **fields}.values())
            return bytes(made)
    raise AssertionError(kind)


def place(data: bytes, kind: int) -> tuple[int, bytes]:
    """(offset, content) of the first section of a type."""
    rows = SECTION.iter_unpack(data[HEADER.unpack_from(data)[6] :])
    row = next(row for row in rows if row[1] == kind)
    return row[4], data[row[4] : row[4] + row[5]]


def section(data: bytes, kind: int, content: bytes) -> bytes:
    """The file with other bytes at the beginning of its first section of a type."""
    at, _ = place(data, kind)
    return data[:at] + content + data[at + len(content) :]


def test_a_library_is_read_whole() -> None:
    data = make_elf(
        needed=["libc10.so", "libc.so.6"],
        undefined=["_ZN3c104cuda9SetDeviceEab", "memcpy"],
        weak=["__gmon_start__"],
        exported=["PyInit__C", "run"],
        soname="lib_C.so",
        runpath="$ORIGIN/../lib:/usr/local/cuda/lib64",
        rpath="$ORIGIN",
        verneed={"libc.so.6": ["GLIBC_2.14", "GLIBC_2.34"], "libstdc++.so.6": ["GLIBCXX_3.4.30"]},
        verdef=["DEMO_1", "DEMO_2"],
    )
    assert elf.read(data) == Elf(
        machine=X86_64,
        soname="lib_C.so",
        needed=("libc10.so", "libc.so.6"),
        rpath=("$ORIGIN",),
        runpath=("$ORIGIN/../lib", "/usr/local/cuda/lib64"),
        undefined=frozenset({"_ZN3c104cuda9SetDeviceEab", "memcpy"}),
        exported=frozenset({"PyInit__C", "run"}),
        requires={
            "libc.so.6": frozenset({"GLIBC_2.14", "GLIBC_2.34"}),
            "libstdc++.so.6": frozenset({"GLIBCXX_3.4.30"}),
        },
        provides=frozenset({"DEMO_1", "DEMO_2"}),
        alignment=1 << 16,
    )


@pytest.mark.parametrize("sections", [True, False], ids=["sections", "none"])
@pytest.mark.parametrize("hashes", [("gnu",), ("sysv",), ("gnu", "sysv")], ids="-".join)
@pytest.mark.parametrize("exported", [(), ("one",), tuple(f"name{n}" for n in range(50))], ids=len)
@pytest.mark.parametrize("shift", [0, 0x400000])
def test_symbols_are_counted_in_every_way(
    exported: tuple[str, ...], hashes: tuple[str, ...], shift: int, *, sections: bool
) -> None:
    data = make_elf(undefined=["a", "b", "c"], exported=exported, hashes=hashes, sections=sections, shift=shift)
    found = elf.read(data)
    assert found.undefined == {"a", "b", "c"}
    assert found.exported == set(exported)


def test_symbols_without_any_count_are_those_that_relocations_name() -> None:
    found = elf.read(make_elf(undefined=["a", "b"], weak=["c"], hashes=(), sections=False))
    assert found.undefined == {"a", "b"}
    assert elf.read(make_elf(hashes=(), sections=False)).undefined == frozenset()


def test_section_headers_of_another_table_do_not_count() -> None:
    data = section_row(make_elf(undefined=["a", "b", "c"], hashes=["gnu-empty"]), 11, addr=0x12345, size=SYMBOL.size)
    assert elf.read(data).undefined == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("binding", "visibility", "seen"),
    [
        (LOCAL, 0, False),
        (WEAK, 0, True),
        (UNIQUE, 0, True),
        (1, PROTECTED, True),
        (1, HIDDEN, False),
        (WEAK, INTERNAL, False),
    ],
)
def test_exported_is_what_others_can_see(binding: int, visibility: int, *, seen: bool) -> None:
    data = make_elf(symbols=[Symbol("it", binding=binding, visibility=visibility)], exported=["other"])
    assert elf.read(data).exported == ({"it", "other"} if seen else {"other"})


def test_a_version_that_is_not_insisted_upon_may_be_missing() -> None:
    data = make_elf(verneed={"libc.so.6": ["GLIBC_2.14", "GLIBC_9.9"]})
    place = data.index(struct.pack("<HHIII", 1, 2, data.index(b"libc.so.6\0") - data.index(b"\0libc.so.6\0"), 16, 0))
    weak = bytearray(data)
    weak[place + 16 + 16 + 4] = 2  # VER_FLG_WEAK of the second
    assert elf.read(bytes(weak)).requires == {"libc.so.6": {"GLIBC_2.14"}}


def test_a_program_and_a_library_that_can_be_started() -> None:
    loader = "/lib64/ld-linux-x86-64.so.2"
    assert elf.read(make_elf(needed=["libc.so.6"], interpreter=loader)).program
    assert not elf.read(make_elf(soname="libc.so.6", interpreter=loader)).program
    assert not elf.read(make_elf()).program


def test_names_that_are_not_ascii() -> None:
    data = make_elf(needed=["libé.so"], undefined=["größe", "plain"], exported=["日本"])
    found = elf.read(data)
    assert (found.needed, found.undefined, found.exported) == (("libé.so",), {"größe", "plain"}, {"日本"})
    broken = data.replace("größe".encode(), b"gr\xff\xfe\xff\xfee")
    assert elf.read(broken).undefined == {r"gr\xff\xfe\xff\xfee", "plain"}


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_of_every_kind(wrap: Any) -> None:
    data = make_elf(needed=["libm.so.6"], exported=["f"])
    assert elf.read(wrap(data)) == elf.read(data)


def test_a_mapped_file_can_be_closed_afterwards(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(make_elf(needed=["libm.so.6"], undefined=["f"]))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert elf.read(data).needed == ("libm.so.6",)
    path.write_bytes(path.read_bytes()[:-30])
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        with pytest.raises(Unreadable) as caught:
            elf.read(data)
        golden.check(caught.value)


def of_class(data: bytes, wide: int, order: int) -> bytes:
    return data[:4] + bytes([wide, order]) + data[6:]


@pytest.mark.parametrize(
    ("data", "machine"),
    [
        (of_class(make_elf(needed=["libc.so.6"], machine=3), 1, 1), 3),
        (of_class(make_elf(machine=0x1600), 2, 2), 0x16),
        (header(make_elf(needed=["libc.so.6"]), phnum=0, type=1), X86_64),
        (header(make_elf(needed=["libc.so.6"]), type=4), X86_64),
        (segment(make_elf(needed=["libc.so.6"]), 2, type=4), X86_64),
        (section_row(make_elf(needed=["libc.so.6"]), 6, type=8), X86_64),
    ],
    ids=["32-bit", "big-endian", "object file", "core dump", "static", "debugging only"],
)
def test_what_no_loader_here_takes_has_a_machine_and_nothing_else(data: bytes, machine: int) -> None:
    assert elf.read(data) == Elf(machine)


GOOD = make_elf(needed=["libm.so.6"], undefined=["a"], exported=["b", "c"], verneed={"libm.so.6": ["GLIBC_2.2.5"]})


def tag(data: bytes, number: int, value: int) -> bytes:
    """The file with another value of a tag in its dynamic section."""
    start = next(
        row[2] for row in SEGMENT.iter_unpack(data[HEADER.size : HEADER.size + 3 * SEGMENT.size]) if row[0] == 2
    )
    for at in range(start, len(data), 16):
        if struct.unpack_from("<Q", data, at)[0] == number:
            return data[: at + 8] + struct.pack("<Q", value) + data[at + 16 :]
    raise AssertionError(number)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "its header"),
        (b"\x7fELF", "its header"),
        (b"#!/bin/sh\necho hello, world", "no ELF header"),
        (of_class(GOOD, 3, 1), "no ELF header"),
        (GOOD[:40], "its header"),
        (GOOD[:-1], "its section table"),
        (header(GOOD, shoff=0)[:600], "a segment of"),
        (header(GOOD, phoff=1 << 63), "its program headers"),
        (header(GOOD, phentsize=57), "its segments are described in 57 bytes"),
        (header(GOOD, shentsize=1), "its sections are described in 1 bytes"),
        (header(GOOD, shstrndx=60000), "in number 60000"),
        (segment(GOOD, 2, filesz=1 << 40), "its dynamic section has"),
        (segment(GOOD, 2, offset=1 << 40), "its dynamic section"),
        (segment(GOOD, 1, vaddr=1 << 40), "no segment loads"),
        (tag(GOOD, 10, 1 << 40), "its string table has"),
        (tag(GOOD, 10, 1 << 26), "its string table has"),
        (make_elf(runpath=":" * (1 << 17)), "a path of 131072 characters"),
        (tag(GOOD, 10, 4), "a symbol's name ends beyond"),
        (tag(GOOD, 1, 1 << 50), "no name ends"),
        (tag(GOOD, 11, 16), "16 bytes each instead of 24"),
        (tag(GOOD, 0x6FFFFFFE, 1 << 50), "no segment loads"),
        (tag(GOOD, 0x6FFFFFFF, 1 << 50), "its version table claims"),
        (section(make_elf(hashes=["sysv"]), 5, struct.pack("<II", 1, 1 << 31)), "it claims 2147483648 symbols"),
        (section(make_elf(hashes=["sysv"]), 5, struct.pack("<II", 1, 1 << 20)), "its symbol table"),
        (section(GOOD, 0x6FFFFFF6, struct.pack("<I", 1 << 31)), "2147483648 buckets"),
        (section(GOOD, 0x6FFFFFF6, struct.pack("<III", 1, 1, 1 << 31)), "its hash table"),
    ],
)
def test_damage_is_reported(data: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why) as caught:
        elf.read(data)
    assert "\n" not in str(caught.value)


def test_overlapping_names_do_not_fill_the_memory() -> None:
    """20,000 symbols, each of which is called by all but the first letters of one name of a megabyte."""
    count = 20_000
    data = make_elf(undefined=["x" * (1 << 20)], exported=[f"s{n}" for n in range(count)], hashes=["sysv"])
    made = bytearray(data)
    start, _ = place(data, 11)
    for number in range(1, count):
        struct.pack_into("<I", made, start + SYMBOL.size * number, number)
    with pytest.raises(Unreadable, match="overlap"):
        elf.read(bytes(made))


def test_a_chain_without_end_is_reported(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    data = make_elf(exported=[f"s{n}" for n in range(20)])
    assert len(elf.read(data).exported) == 20
    table = struct.unpack("<20I", place(data, 0x6FFFFFF6)[1][-80:])
    endless = place(data, 0x6FFFFFF6)[1][:-80] + struct.pack("<20I", *(value & ~1 for value in table))
    monkeypatch.setattr("imagegen.audit.elf_dynamic.MOST_SYMBOLS", 20)
    with pytest.raises(Unreadable) as caught:
        elf.read(section(data, 0x6FFFFFF6, endless))
    golden.check(caught.value)


def test_where_gpu_code_is() -> None:
    code, linkable = make_fatbin([[]]), make_fatbin([[], []])
    data = make_elf(fatbin=code, relfatbin=linkable)
    assert [data[start:end] for start, end in elf.code_ranges(data)] == [code]
    bare = make_elf(fatbin=code, sections=False)
    assert elf.code_ranges(bare) == ((0, len(bare)),)
    assert elf.code_ranges(make_elf()) == ()
    assert elf.code_ranges(make_elf(relfatbin=linkable)) == ()


def test_the_alignment_is_the_smallest_of_the_segments_that_are_mapped() -> None:
    data = make_elf(alignment=1 << 12, machine=AARCH64)
    assert elf.read(data).alignment == 1 << 12
    assert elf.read(segment(data, 1, align=1 << 16)).alignment == 1 << 16
    note = segment(data, 0x6474E551, type=1, align=1 << 14)  # another segment that is mapped, of no bytes
    assert elf.read(note).alignment == 1 << 12
    assert elf.read(segment(note, 1, align=1 << 16)).alignment == 1 << 14
