"""The names that an ELF file needs and defines: enough of the format to know whether a module loads without a driver.

Layout: System V ABI, chapter 4 (sections, symbol table) and 5 (dynamic section), 64-bit little-endian files.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
DYNAMIC = struct.Struct("<qQ")
MAGIC = b"\x7fELF\x02\x01\x01"  # 64-bit, little-endian, version 1
SHT_DYNAMIC, SHT_DYNSYM, DT_NEEDED = 6, 11, 1

Read = TypeVar("Read")


@dataclass(frozen=True)
class Dynamic:
    """The entries of a file that the loader reads."""

    needed: frozenset[str]  # names of libraries
    undefined: frozenset[str]  # symbols that others must have
    defined: frozenset[str]  # symbols that it has for others


NOTHING = Dynamic(frozenset(), frozenset(), frozenset())


def dynamic(path: Path) -> Dynamic:
    """NOTHING for a file that is no such ELF file, or one without section headers."""
    return _of(path, _read, NOTHING)


def needed(path: Path) -> frozenset[str]:
    """Names of the libraries that a file is linked with. Far quicker than all of `dynamic`."""
    return _of(path, _needed, frozenset())


def defines(path: Path, symbol: str) -> bool:
    """Return whether a file exports a symbol. Reads its symbol table only if the name occurs in the file."""

    def named(data: mmap.mmap) -> bool:
        text = b"\0" + symbol.encode() + b"\0"
        tables = [(start, end) for kind, start, end, _ in _tables(data) if kind == SHT_DYNSYM]
        return any(data.find(text, start, end) >= 0 for start, end in tables)

    return _of(path, named, False) and symbol in dynamic(path).defined


def _of(path: Path, read: Callable[[mmap.mmap], Read], otherwise: Read) -> Read:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return otherwise
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return read(data)
            except (struct.error, IndexError, ValueError, OverflowError):  # an offset beyond what Python can index
                return otherwise


def machine(content: bytes) -> tuple[int, int]:
    """(machine, flags) of an ELF file's header; (0, 0) of anything else."""
    if len(content) < HEADER.size or not content.startswith(b"\x7fELF\x02\x01"):
        return 0, 0
    fields = HEADER.unpack_from(content)
    return fields[2], fields[7]


def _tables(data: mmap.mmap) -> list[tuple[int, int, int, bytes]]:
    """(kind, start and end of its strings, content) of the dynamic section and of the loader's symbol table."""
    header = HEADER.unpack_from(data)
    start, count = header[6], header[12]
    sections = [SECTION.unpack_from(data, start + index * SECTION.size) for index in range(count)]
    return [
        (kind, sections[link][4], sections[link][4] + sections[link][5], data[offset : offset + size])
        for _, kind, _, _, offset, size, link, *_ in sections
        if kind in (SHT_DYNAMIC, SHT_DYNSYM)
    ]


def _needed(data: mmap.mmap) -> frozenset[str]:
    return frozenset(
        _text(data, strings + value)
        for kind, strings, _, table in _tables(data)
        if kind == SHT_DYNAMIC
        for tag, value in DYNAMIC.iter_unpack(table)
        if tag == DT_NEEDED
    )


def _read(data: mmap.mmap) -> Dynamic:
    undefined: set[str] = set()
    defined: set[str] = set()
    for kind, strings, _, table in _tables(data):
        if kind == SHT_DYNSYM:
            for name, _, _, section, _, _ in SYMBOL.iter_unpack(table):
                (defined if section else undefined).add(_text(data, strings + name))
    return Dynamic(_needed(data), frozenset(undefined - {""}), frozenset(defined))


def _text(data: mmap.mmap, start: int) -> str:
    end = data.find(b"\0", start)
    if end < 0:
        raise ValueError("a name without an end")
    return data[start:end].decode("utf-8", "replace")
