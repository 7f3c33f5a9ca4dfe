"""ELF files as the loader sees them: ELF64, little-endian, with or without section headers.

Source of the layout: System V ABI, chapters 4 and 5. The dynamic section is found by the program headers, since the
loader reads only them; section headers show the ranges of GPU code. A file of another class or byte order is valid, but
no supported loader takes it. It becomes an Elf with only its machine, as does a cubin, and a file without a dynamic
section (an object file, a static program, a file with only debugging information).

A library of 80,000 symbols takes a tenth of a second. Time and memory are bounded by the file's size and by limits that
no real file comes near, whatever the file template.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from imagegen.audit.elf_dynamic import MOST_STRINGS, Dynamic, Load
from imagegen.audit.model import CUDA, Elf
from imagegen.audit.window import Data, Holes, Unreadable, Window

MAGIC = b"\x7fELF"
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<II8xQQQI20x")  # name, type, address, offset, size, link
_MOST_SECTIONS = 1 << 18  # an object file with a section for each function has tens of thousands
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
NOTE, NOBITS, _DYNSYM = 7, 8, 11  # types of sections
_CORE = 4
_GPU_CODE = b".nv_fatbin"


class SectionHeader(NamedTuple):
    """The used fields of a row of the section table."""

    address: int
    offset: int
    size: int


class Sections:
    """The section table; false where the file has none."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._rows: list[tuple[int, ...]] = []
        header = HEADER.unpack(window.take(0, HEADER.size, "its header"))
        at, row, count, self._labels = header[6], header[11], header[12], header[13]
        if not at:
            return
        if row != _SECTION.size:
            raise Unreadable(f"its sections are described in {row} bytes each instead of {_SECTION.size}")
        table = window.take(at, row * max(count, 1), "its section table")
        first = _SECTION.unpack_from(table)
        if not count:  # a count of more than 16 bits stands in the first row
            count = first[4]
            table = b""
        self._labels = first[5] if self._labels == 0xFFFF else self._labels
        if count > _MOST_SECTIONS or self._labels >= max(count, 1):
            raise Unreadable(f"it claims {count} sections, with their names in number {self._labels}")
        if not table:
            table = window.take(at, row * count, "its section table")
        self._rows = list(_SECTION.iter_unpack(table))

    def __bool__(self) -> bool:
        return bool(self._rows)

    def of(self, kind: int) -> list[SectionHeader]:
        """Return the sections of a type."""
        return [SectionHeader(*row[2:5]) for row in self._rows if row[1] == kind]

    def called(self, name: bytes) -> list[SectionHeader]:
        """Return the sections with a name that are in the file."""
        labels = self._names()
        name += b"\0"
        return [
            SectionHeader(*row[2:5])
            for row in self._rows
            if row[1] != NOBITS and labels[row[0] : row[0] + len(name)] == name
        ]

    def _names(self) -> bytes:
        _, kind, _, offset, size, _ = self._rows[self._labels]
        if not kind or kind == NOBITS:
            return b""
        if size > MOST_STRINGS:
            raise Unreadable(f"the names of its sections take {size} bytes")
        return self._window.take(offset, size, "the names of its sections")


def read(data: Data, holes: Holes = ()) -> Elf:
    """Return the parts of an ELF file that the loader reads.

    Args:
        data: All of the file.
        holes: Ranges that were not kept, as in Window.

    Raises:
        Unreadable: The file is not an ELF file, or is damaged.
    """
    window = Window(data, holes)
    machine, ours = kind(window)
    if not ours or machine == CUDA:
        return _bare(machine)
    header = HEADER.unpack(window.take(0, HEADER.size, "its header"))
    segments = _segments(window, header)
    described = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    program = any(segment[0] == _PT_INTERP for segment in segments)
    rows = Sections(window)
    if described is None or header[1] == _CORE or _only_debugging(rows, described[3]):
        return Elf(machine, program=program and described is None)
    loads = [Load(segment[3], segment[2], segment[5], segment[7]) for segment in segments if segment[0] == _PT_LOAD]
    for load in loads:
        if load.offset + load.size > window.size:
            raise Unreadable(f"a segment of {load.size} bytes at {load.offset:#x} ends beyond the file's {window.size}")
    dynamic = Dynamic(window, loads, described[2], described[5])
    table = next(iter(rows.of(_DYNSYM)), None)
    return dynamic.elf(machine, program=program, symbols=(table.address, table.size) if table else None)


def code_ranges(data: Data, holes: Holes = ()) -> tuple[tuple[int, int], ...]:
    """Return (start, end) of each part of an ELF file that holds GPU code that is ready to run.

    Without section headers it is the whole file. Readers then find code by its magic number, and code that is only for
    the linker counts too.

    Raises:
        Unreadable: As `read`.
    """
    window = Window(data, holes)
    machine, ours = kind(window)
    if not ours or machine == CUDA:
        return ()
    rows = Sections(window)
    if not rows:
        return ((0, window.size),)
    code_sections = rows.called(_GPU_CODE)
    for row in code_sections:
        if row.offset + row.size > window.size:
            raise Unreadable(f"its GPU code ({row.size} bytes at {row.offset:#x}) ends beyond the file's {window.size}")
    return tuple((row.offset, row.offset + row.size) for row in code_sections)


@lru_cache(16)  # stacks hold 15,000 cubins
def _bare(machine: int) -> Elf:
    return Elf(machine)


def kind(window: Window) -> tuple[int, bool]:
    """Return (machine, whether the file has the class and byte order that this reader supports)."""
    head = window.take(0, 20, "its header")
    if not head.startswith(MAGIC) or head[4] not in {1, 2} or head[5] not in {1, 2} or head[6] != 1:
        raise Unreadable("its first bytes are no ELF header")
    (machine,) = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)
    return machine, head[4] == 2 and head[5] == 1


def _segments(window: Window, header: tuple[int, ...]) -> list[tuple[int, ...]]:
    at, row, count = header[5], header[9], header[10]
    if count and row != _SEGMENT.size:
        raise Unreadable(f"its segments are described in {row} bytes each instead of {_SEGMENT.size}")
    return list(_SEGMENT.iter_unpack(window.take(at, row * count, "its program headers"))) if count else []


def _only_debugging(rows: Sections, address: int) -> bool:
    """Return whether the loaded parts were left out, as `objcopy --only-keep-debug` does."""
    return any(row.address == address and row.size for row in rows.of(NOBITS))
