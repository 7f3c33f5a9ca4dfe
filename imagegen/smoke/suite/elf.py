"""What an ELF file needs and names: enough of the format to know whether a module loads without a driver.

Layout: System V ABI, chapter 4 (sections, symbol table) and 5 (dynamic section), 64-bit little-endian files.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
DYNAMIC = struct.Struct("<qQ")
MAGIC = b"\x7fELF\x02\x01\x01"  # 64-bit, little-endian, version 1
SHT_DYNAMIC, SHT_DYNSYM, DT_NEEDED = 6, 11, 1


@dataclass(frozen=True)
class Dynamic:
    """What the loader reads of a file."""

    needed: frozenset[str]  # names of libraries
    undefined: frozenset[str]  # symbols that others must have
    defined: frozenset[str]  # symbols that it has for others


NOTHING = Dynamic(frozenset(), frozenset(), frozenset())


def dynamic(path: Path) -> Dynamic:
    """NOTHING for a file that is no such ELF file, or one without section headers."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return NOTHING
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(data)
            except (struct.error, IndexError, ValueError, OverflowError):  # an offset beyond what Python can index
                return NOTHING


def machine(content: bytes) -> tuple[int, int]:
    """(machine, flags) of an ELF file's header; (0, 0) of anything else."""
    if len(content) < HEADER.size or not content.startswith(b"\x7fELF\x02\x01"):
        return 0, 0
    fields = HEADER.unpack_from(content)
    return fields[2], fields[7]


def _read(data: mmap.mmap) -> Dynamic:
    header = HEADER.unpack_from(data)
    start, count = header[6], header[12]
    sections = [SECTION.unpack_from(data, start + index * SECTION.size) for index in range(count)]
    needed: set[str] = set()
    undefined: set[str] = set()
    defined: set[str] = set()
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind not in (SHT_DYNAMIC, SHT_DYNSYM):
            continue
        strings, table = sections[link][4], data[offset : offset + size]
        if kind == SHT_DYNAMIC:
            needed |= {_text(data, strings + value) for tag, value in DYNAMIC.iter_unpack(table) if tag == DT_NEEDED}
        else:
            for name, _, _, section, _, _ in SYMBOL.iter_unpack(table):
                (defined if section else undefined).add(_text(data, strings + name))
    return Dynamic(frozenset(needed), frozenset(undefined - {""}), frozenset(defined))


def _text(data: mmap.mmap, start: int) -> str:
    end = data.find(b"\0", start)
    if end < 0:
        raise ValueError("a name without an end")
    return data[start:end].decode("utf-8", "replace")
