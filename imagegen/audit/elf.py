"""ELF files as the loader sees them: ELF64, little-endian, with or without section headers.

Source of the layout: System V ABI, chapters 4 and 5. The dynamic section is found by the program headers, since the
loader reads only them; section headers show the ranges of GPU code. A file of another class or byte order is valid, but
no supported loader takes it. It becomes an Elf with only its machine, as does a cubin, and a file without a dynamic
section (an object file, a static program, a file with only debugging information).

A library of 80,000 symbols takes a tenth of a second. Time and memory are bounded by the file's size and by limits that
no real file comes near, whatever the file template.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from imagegen.audit.catalogue import driver_symbols, is_standard
from imagegen.audit.closure import Closure, How, Library, Loader
from imagegen.audit.demangle import demangle
from imagegen.audit.model import CUDA, Elf, Finding, Severity, few, listed
from imagegen.audit.torch_rule import owned
from imagegen.audit.window import Data, Holes, Unreadable, Window
from imagegen.core.text import counted

# The dynamic section of an ELF file and the tables that it points to: names, symbols, versions.
#
# Source of the layout: System V ABI, chapter 5; the LSB's symbol versioning; DT_GNU_HASH as GNU ld writes it and glibc
# reads it. Symbols are counted as the loader can find them, since no field states the size of their table.

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


# Check for symbols that nothing defines. A file with such a symbol cannot be loaded. Only strong symbols count. Late
# binding does not help, because CPython and ctypes load with RTLD_NOW. The rule for torch covers symbols that only
# torch may define, and the check of libraries covers symbols of missing libraries.

_OF_PYTHON = re.compile(r"_?Py[A-Z_]\w*")
# A C++ name in a namespace or class that is neither the standard library's nor the compiler's.
_OF_ONE_PROJECT = re.compile(r"_ZNK?\d+(?!__|std)[A-Za-z]")
_FILES = 20  # of a package


@dataclass(frozen=True)
class _Missing:
    """The symbols that one file needs and does not see, by cause."""

    library: Library
    undefined: frozenset[str] = frozenset()  # defined nowhere
    underlinked: frozenset[str] = frozenset()  # defined by something that it does not ask for
    python: frozenset[str] = frozenset()  # of Python's C API, and not of this interpreter


def check(loader: Loader) -> Iterator[Finding]:
    """Yield findings about symbols that nothing defines, or nothing that the file asks for."""
    scope = SymbolScope(loader)
    by_package: dict[str, list[_Missing]] = {}
    for library in scope.loader.libraries:
        missing = _missing(scope, library)
        if missing is not None:
            by_package.setdefault(library.package, []).append(missing)
    for package, files in by_package.items():
        yield from _findings(scope, package, files)
    if scope.loader.exhausted:
        why = "the files have more dependencies on each other than any real stack; not all of them were followed"
        yield Finding(Severity.WARNING, "not-followed", "", None, why)


class SymbolScope:
    """The symbols that each library defines, as a loader's files see them."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    @cached_property
    def always_visible(self) -> frozenset[str]:
        """Return the symbols that each file of a Python process sees without depending on them."""
        return frozenset().union(*(library.elf.exported for library in self.loader.everywhere))

    @cached_property
    def api(self) -> bool:
        """Return whether Python's C API is known, of the interpreter or its libpython."""
        return "PyObject_Call" in self.always_visible

    def unseen(self, library: Library, closure: Closure) -> frozenset[str]:
        missing = library.elf.undefined - self.always_visible
        for other in closure.libraries[1:]:
            if not missing:
                break
            missing -= other.elf.exported
        return missing

    def definers(self, symbols: frozenset[str]) -> Mapping[str, Library]:
        """Return the library that defines each of the symbols, of all libraries."""
        owners: dict[str, Library] = {}
        for library in (*self.loader.libraries, *self.loader.system.values()):
            for symbol in symbols & library.elf.exported:
                owners.setdefault(symbol, library)
        return owners


def _missing(scope: SymbolScope, library: Library) -> _Missing | None:
    if library.program:  # it has a process of its own, and its symbols are bound at the first call
        return None
    closure = scope.loader.closure(library)
    missing = scope.unseen(library, closure)
    if not missing:
        return None
    of_python = frozenset(symbol for symbol in missing if _OF_PYTHON.fullmatch(symbol))
    missing -= of_python
    # Any file that loads the driver's library provides its symbols; others need not ask for it.
    missing -= frozenset(symbol for symbol in missing if driver_symbols().fullmatch(symbol))
    if not closure.whole:
        missing = _certain(missing, closure)
    underlinked = frozenset(scope.definers(missing)) if missing else missing
    nowhere = missing - underlinked
    if library.package.partition(" ")[0] != "torch" and any(owned(symbol) for symbol in nowhere):
        nowhere = frozenset()  # the file was built for another torch, which also explains the other symbols
    if not scope.api or not (of_python and scope.loader.imported(library)):
        of_python = frozenset()
    return _Missing(library, nowhere, underlinked, of_python) if nowhere or underlinked or of_python else None


def _certain(missing: frozenset[str], closure: Closure) -> frozenset[str]:
    """Return the symbols that none of a file's absent libraries can define.

    If the base is not known, these are the symbols that no library of C and C++ defines.
    """
    absent = [
        resolution
        for resolution in closure.resolutions
        if resolution.library is None and resolution.how is not How.DRIVER
    ]
    if any(resolution.how is not How.UNKNOWN or not is_standard(resolution.name) for resolution in absent):
        return frozenset()
    return frozenset(symbol for symbol in missing if _OF_ONE_PROJECT.match(symbol))


def _findings(scope: SymbolScope, package: str, files: list[_Missing]) -> Iterator[Finding]:
    undefined = [(missing.library, missing.undefined) for missing in files if missing.undefined]
    imported = [(library, symbols) for library, symbols in undefined if scope.loader.imported(library)]
    not_imported = [(library, symbols) for library, symbols in undefined if not scope.loader.imported(library)]
    for severity, group in ((Severity.ERROR, imported), (Severity.WARNING, not_imported)):
        if group:
            yield _finding(severity, "undefined-symbol", package, group, "nothing defines {}")
    if python := [(missing.library, missing.python) for missing in files if missing.python]:
        interpreter = f"Python {scope.loader.subject.python or ''}".strip()
        yield _finding(Severity.ERROR, "python-symbol", package, python, f"{interpreter} does not define {{}}")
    if underlinked := [(missing.library, missing.underlinked) for missing in files if missing.underlinked]:
        first = min(underlinked[0][1])
        owner = scope.definers(frozenset({first}))[first]
        template = f"{{}} is defined by {owner.path}, which the file does not ask for"
        yield _finding(Severity.INFO, "underlinked", package, underlinked, template)


def _finding(
    severity: Severity, id_: str, package: str, files: list[tuple[Library, frozenset[str]]], template: str
) -> Finding:
    path, symbols = files[0][0].path, sorted(files[0][1])
    count = len(frozenset().union(*(file_symbols for _, file_symbols in files)))
    evidence = template.format(demangle(symbols[0]))
    if count > 1 or len(files) > 1:
        evidence += f" ({counted(count, 'symbol')} in {counted(len(files), 'file')})"
    details = few(files, _FILES, lambda file: f"{file[0].path}: {listed(file[1])}", "files")
    return Finding(severity, id_, package, path, evidence, details)


# ELF files as the loader sees them: ELF64, little-endian, with or without section headers.

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
