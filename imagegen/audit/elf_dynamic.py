"""The dynamic section of an ELF file and the tables that it points to: names, symbols, versions.

Source of the layout: System V ABI, chapter 5; the LSB's symbol versioning; DT_GNU_HASH as GNU ld writes it and glibc
reads it. Symbols are counted as the loader can find them, since no field states the size of their table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from imagegen.audit.model import Elf
from imagegen.audit.window import Unreadable, Window

MOST_SYMBOLS = 1 << 21  # libtorch_cpu.so has 80,000
MOST_STRINGS = 1 << 25  # bytes of a string table; all tables of libtorch_cpu.so end after 8.2 MB
_LONGEST_PATH = 1 << 16  # characters of DT_RPATH or DT_RUNPATH: each colon makes a directory to look in
MOST_ENTRIES = 1 << 16  # of the dynamic section, and of all version tables
_OVERLAPPING = "its names overlap, and together are far longer than its string table"

_ENTRY = struct.Struct("<QQ")
_SYMBOL = struct.Struct("<IBBH16x")
_RELOCATION = struct.Struct("<12xI8x")  # the upper half of r_info, which is the symbol's number
_NEED, _AUXILIARY = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_DEFINITION, _DEFINED = struct.Struct("<HHHHIII"), struct.Struct("<II")

_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_STRTAB, _STRSZ, _SYMTAB, _SYMENT, _HASH, _GNU_HASH = 5, 10, 6, 11, 4, 0x6FFFFEF5
_RELOCATIONS = ((7, 8), (23, 2))  # DT_RELA and DT_RELASZ, DT_JMPREL and DT_PLTRELSZ
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_GLOBAL = 1
_EXPORTED = (_GLOBAL, 2, 10)  # with WEAK and UNIQUE
_VISIBLE = (0, 3)  # default, protected
_BASE, _NOT_INSISTED = 1, 2  # flags of a version: VER_FLG_BASE (the file's own name), VER_FLG_WEAK (may be missing)


class Load(NamedTuple):
    """A part of the file that the loader maps."""

    address: int
    offset: int
    size: int  # bytes in the file
    alignment: int  # bytes


class Names:
    """A string table, and how much may still come out of it: strings may overlap, so that few bytes hold many."""

    def __init__(self, table: bytes) -> None:
        self.text = table.decode("latin-1")  # one character a byte: offsets hold
        self.remaining = 4 * len(table) + (1 << 16)

    def at(self, offset: int) -> str:
        end = self.text.find("\0", offset)
        if end < 0:
            raise Unreadable(f"no name ends at or behind {offset} of its string table")
        self.remaining -= end - offset
        if self.remaining < 0:
            raise Unreadable(_OVERLAPPING)
        return _proper(self.text[offset:end])


class Dynamic:
    """The dynamic section, which is at offset `at` of the file and has `size` bytes."""

    def __init__(self, window: Window, loads: list[Load], at: int, size: int) -> None:
        self._window = window
        self._loads = loads
        if size > MOST_ENTRIES * _ENTRY.size:
            raise Unreadable(f"its dynamic section has {size} bytes")
        self._list: list[tuple[int, int]] = []
        for tag, value in _ENTRY.iter_unpack(window.take(at, size - size % _ENTRY.size, "its dynamic section")):
            if not tag:
                break
            self._list.append((tag, value))
        self._tags = dict(self._list)
        length = self._tags.get(_STRSZ, 0)
        if length > MOST_STRINGS:
            raise Unreadable(f"its string table has {length} bytes")
        self._names = Names(window.take(self._offset(_STRTAB), length, "its string table") if length else b"")

    def elf(self, machine: int, *, program: bool, symbols: tuple[int, int] | None) -> Elf:
        """`symbols` is (address, size) of the symbol table as the section headers have it."""
        soname = self._text(_SONAME)
        undefined, exported = self._symbols(symbols)
        return Elf(
            machine=machine,
            soname=soname,
            needed=tuple(self._names.at(value) for tag, value in self._list if tag == _NEEDED),
            rpath=_split(self._text(_RPATH)),
            runpath=_split(self._text(_RUNPATH)),
            undefined=undefined,
            exported=exported,
            requires=self._requires(),
            provides=self._provides(),
            program=program and soname is None,  # libc.so.6 can be started, and is a library all the same
            alignment=min((load.alignment for load in self._loads), default=0),
        )

    def _text(self, tag: int) -> str | None:
        return self._names.at(self._tags[tag]) if tag in self._tags else None

    def _offset(self, tag: int) -> int:
        """Return the offset in the file of the address that a tag holds."""
        address = self._tags.get(tag, 0)
        for load in self._loads:
            if load.address <= address < load.address + load.size:
                return address - load.address + load.offset
        raise Unreadable(f"its dynamic section names an address that no segment loads: {address:#x}")

    def _symbols(self, described: tuple[int, int] | None) -> tuple[frozenset[str], frozenset[str]]:
        """Return (undefined, exported) symbols."""
        if _SYMTAB not in self._tags:
            return frozenset(), frozenset()
        if self._tags.get(_SYMENT, 24) != 24:
            raise Unreadable(f"its symbols have {self._tags[_SYMENT]} bytes each instead of 24")
        count = self._count(described)
        if count > MOST_SYMBOLS:
            raise Unreadable(f"it claims {count} symbols")
        table = self._window.take(self._offset(_SYMTAB), 24 * count, "its symbol table")
        undefined: list[str] = []
        exported: list[str] = []
        text, remaining = self._names.text, self._names.remaining
        for at, info, other, section in _SYMBOL.iter_unpack(table):
            binding = info >> 4
            if section:
                if binding not in _EXPORTED or other & 3 not in _VISIBLE:
                    continue
            elif binding != _GLOBAL:
                continue
            end = text.find("\0", at)
            remaining -= end - at
            if end < 0 or remaining < 0:
                raise Unreadable(_OVERLAPPING if remaining < 0 else "a symbol's name ends beyond its string table")
            if end > at:
                (exported if section else undefined).append(text[at:end])
        self._names.remaining = remaining
        return _named(undefined, plain=text.isascii()), _named(exported, plain=text.isascii())

    def _count(self, described: tuple[int, int] | None) -> int:
        """Return the number of symbols.

        DT_HASH states it. DT_GNU_HASH ends with the last symbol, but it is empty if nothing is exported, and need not
        state the end of the other symbols. The section header of the same table then states it. Without a section
        header, only symbols that relocations name count, because the loader looks up no others.
        """
        if _HASH in self._tags:
            return self._number(self._offset(_HASH) + 4)
        count = self._hashed() if _GNU_HASH in self._tags else 0
        if count:
            return count
        if described and described[0] == self._tags[_SYMTAB]:
            return described[1] // 24
        return self._relocated()

    def _hashed(self) -> int:
        """Return one more than the number of the last symbol in DT_GNU_HASH; 0 if it has none."""
        at = self._offset(_GNU_HASH)
        buckets, first, bloom, _ = struct.unpack("<IIII", self._window.take(at, 16, "its hash table"))
        if buckets > MOST_SYMBOLS:
            raise Unreadable(f"its hash table claims {buckets} buckets")
        heads = at + 16 + 8 * bloom
        last = max(struct.unpack(f"<{buckets}I", self._window.take(heads, 4 * buckets, "its hash table")), default=0)
        if last < first or not last:
            return 0
        if last > MOST_SYMBOLS:
            raise Unreadable(f"it claims {last} symbols")
        chains = heads + 4 * buckets
        while last <= MOST_SYMBOLS:
            last += 1
            if self._number(chains + 4 * (last - 1 - first)) & 1:
                return last
        raise Unreadable("a chain of its hash table has no end")

    def _number(self, at: int) -> int:
        return int.from_bytes(self._window.take(at, 4, "its hash table"), "little")

    def _relocated(self) -> int:
        last = 0
        for tag, length in _RELOCATIONS:
            size = self._tags.get(length, 0)
            if tag in self._tags and size:
                table = self._window.take(self._offset(tag), size - size % 24, "its relocations")
                last = max(last, max((row[0] for row in _RELOCATION.iter_unpack(table)), default=0))
        return last + 1

    def _requires(self) -> dict[str, frozenset[str]]:
        required: dict[str, set[str]] = {}
        remaining = MOST_ENTRIES
        for at, (_, count, library, first, _) in self._chain(_VERNEED, _VERNEEDNUM, _NEED):
            nodes = required.setdefault(self._names.at(library), set())
            remaining -= count
            if remaining < 0:
                raise Unreadable("it requires more versions than any file does")
            position = at + first
            for _ in range(count):
                _, flags, _, name, following = self._row(_AUXILIARY, position)
                if not flags & _NOT_INSISTED:
                    nodes.add(self._names.at(name))
                if not following:
                    break
                position += following
        return {library: frozenset(nodes) for library, nodes in required.items()}

    def _provides(self) -> frozenset[str]:
        nodes = set()
        for at, (_, flags, _, names, _, first, _) in self._chain(_VERDEF, _VERDEFNUM, _DEFINITION):
            if names and not flags & _BASE:
                nodes.add(self._names.at(self._row(_DEFINED, at + first)[0]))
        return frozenset(nodes)

    def _chain(self, tag: int, number: int, row: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (offset, row) of each row of a version table; the last field of a row is the distance to the next."""
        if tag not in self._tags:
            return
        count, at = self._tags.get(number, 0), self._offset(tag)
        if count > MOST_ENTRIES:
            raise Unreadable(f"its version table claims {count} rows")
        for _ in range(count):
            fields = self._row(row, at)
            yield at, fields
            if not fields[-1]:
                break
            at += fields[-1]

    def _row(self, row: struct.Struct, at: int) -> tuple[int, ...]:
        return row.unpack(self._window.take(at, row.size, "its version table"))


def _named(names: list[str], *, plain: bool) -> frozenset[str]:
    return frozenset(names if plain else map(_proper, names))


def _proper(name: str) -> str:
    return name if name.isascii() else name.encode("latin-1").decode("utf-8", "backslashreplace")


def _split(path: str | None) -> tuple[str, ...]:
    if path and len(path) > _LONGEST_PATH:
        raise Unreadable(f"it has its libraries looked for in a path of {len(path)} characters")
    return tuple(path.split(":")) if path else ()
