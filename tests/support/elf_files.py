"""ELF files, fat binaries and cubins, written byte by byte: what the audit's tests read, without a compiler.

    make_elf(needed=["libc10.so"], undefined=["_ZN3c1010SymIntE"], fatbin=make_fatbin([[sm_90, ptx_90]]))

Layout: System V ABI, chapters 4 and 5; the LSB's symbol versioning; fat binaries as in imagegen/audit/fatbin.py.
A library made here for this machine's processor is a sound one: the loader takes it, and misses what is undefined.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from imagegen.audit.model import CodeTarget

X86_64, AARCH64, CUDA = 62, 183, 190
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
PAIR = struct.Struct("<QQ")
RELOCATION = struct.Struct("<QQq")
IDENT = b"\x7fELF\x02\x01\x01"
LOCAL, GLOBAL, WEAK, UNIQUE = 0, 1, 2, 10
DEFAULT, INTERNAL, HIDDEN, PROTECTED = 0, 1, 2, 3
GLOB_DAT = {X86_64: 6, AARCH64: 1025}  # the relocation by which a symbol's address comes into a table

CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
KINDS = {"ptx": 1, "sass": 2}
VARIANTS = {"": 0, "a": 0x100000, "f": 0x200000}


@dataclass(frozen=True)
class Symbol:
    """An entry of the dynamic symbol table."""

    name: str
    defined: bool = True
    binding: int = GLOBAL
    visibility: int = DEFAULT


@dataclass
class _Strings:
    table: bytearray = field(default_factory=lambda: bytearray(b"\0"))
    places: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        if text not in self.places:
            self.places[text] = len(self.table)
            self.table += text.encode() + b"\0"
        return self.places[text]


def make_elf(  # noqa: D417 - the others are called what they are
    needed: Sequence[str] = (),
    undefined: Sequence[str] = (),
    exported: Sequence[str] = (),
    rpath: str | None = None,
    runpath: str | None = None,
    verneed: Mapping[str, Sequence[str]] | None = None,
    verdef: Sequence[str] = (),
    fatbin: bytes = b"",
    *,
    soname: str | None = None,
    weak: Sequence[str] = (),
    symbols: Sequence[Symbol] = (),
    relfatbin: bytes = b"",
    machine: int = X86_64,
    interpreter: str | None = None,
    hashes: Sequence[str] = ("gnu",),
    sections: bool = True,
    shift: int = 0,
    filling: int = 0,
    alignment: int = 1 << 16,
) -> bytes:
    """A shared library, or a program where `interpreter` is one.

    Args:
        weak: undefined ones that may be missing.
        symbols: further ones, of any binding and visibility.
        hashes: of "gnu", "sysv": the loader's indexes; the reader counts symbols by them. "gnu-empty" is the index
            that GNU ld writes where nothing is exported: it says nothing of how many symbols there are.
        sections: whether there are section headers; the loader needs none. GPU code is found by them.
        shift: address of the file's first byte (a multiple of 65536).
        filling: bytes of nothing after the program headers, as a section that was moved away leaves them.
        alignment: p_align of the segment that is loaded.
    """
    missing = [Symbol(name, defined=False) for name in undefined]
    missing += [Symbol(name, defined=False, binding=WEAK) for name in weak]
    missing += [each for each in symbols if not each.defined]
    buckets, own = _by_bucket([*map(Symbol, exported), *(each for each in symbols if each.defined)])
    strings = _Strings()
    tags = [(1, strings.add(name)) for name in needed]
    tags += [(tag, strings.add(text)) for tag, text in ((14, soname), (15, rpath), (29, runpath)) if text is not None]
    image = _Image(machine, shift, alignment, HEADER.size + SEGMENT.size * (3 + bool(interpreter)) + filling)
    if interpreter:
        image.add(".interp", interpreter.encode() + b"\0")
    image.add(".dynsym", bytes(SYMBOL.size * (1 + len(missing) + len(own))), kind=11, info=1, entry=SYMBOL.size)
    if "sysv" in hashes:
        image.add(".hash", _sysv_hash(len(missing) + len(own)), kind=5, tag=4)
    if "gnu" in hashes or "gnu-empty" in hashes:
        empty = "gnu-empty" in hashes or not own
        table = _EMPTY if empty else _gnu_hash(own, 1 + len(missing), buckets)
        image.add(".gnu.hash", table, kind=0x6FFFFFF6, tag=0x6FFFFEF5)
    if verneed or verdef:
        count = 1 + len(missing) + len(own)
        image.add(".gnu.version", struct.pack(f"<{count}H", 0, *[1] * (count - 1)), kind=0x6FFFFFFF, tag=0x6FFFFFF0)
    if verneed:
        image.add(".gnu.version_r", _verneed(verneed, strings), kind=0x6FFFFFFE, tag=0x6FFFFFFE, info=len(verneed))
        tags.append((0x6FFFFFFF, len(verneed)))
    if verdef:
        nodes = _verdef(verdef, strings, soname or "")
        image.add(".gnu.version_d", nodes, kind=0x6FFFFFFD, tag=0x6FFFFFFC, info=1 + len(verdef))
        tags.append((0x6FFFFFFD, 1 + len(verdef)))
    if missing:
        image.add(".got", bytes(8 * len(missing)))
        got = image.rows[".got"].at + shift
        image.add(".rela.dyn", _relocations(len(missing), got, machine), kind=4, tag=7, entry=RELOCATION.size)
        tags += [(8, RELOCATION.size * len(missing)), (9, RELOCATION.size)]
    image.add(".text", b"\xc3" + bytes(15))
    for name, code in ((".nv_fatbin", fatbin), ("__nv_relfatbin", relfatbin)):
        if code:
            image.add(name, code)
    image.rows[".dynsym"].content = _symbols([*missing, *own], strings, image.rows[".text"].at + shift)
    image.add(".dynstr", bytes(strings.table), kind=3)
    tags += [(5, image.rows[".dynstr"].at + shift), (6, image.rows[".dynsym"].at + shift)]
    tags += [(10, len(strings.table)), (11, SYMBOL.size), *image.tags(), (0, 0)]
    image.add(".dynamic", b"".join(PAIR.pack(*pair) for pair in tags), kind=6)
    return image.encode(sections=sections)


@dataclass
class _Row:
    content: bytes
    kind: int
    at: int  # offset in the file
    tag: int
    info: int
    entry: int


class _Image:
    """A file with all of its parts in one segment, in the order in which they are added."""

    def __init__(self, machine: int, shift: int, alignment: int, start: int) -> None:
        self.machine, self.shift, self.alignment, self.rows = machine, shift, alignment, dict[str, _Row]()
        self._end = _up(start, 8)

    def add(self, name: str, content: bytes, kind: int = 1, tag: int = 0, info: int = 0, entry: int = 0) -> None:
        self.rows[name] = _Row(content, kind, self._end, tag, info, entry)
        self._end = _up(self._end + len(content), 8)

    def tags(self) -> list[tuple[int, int]]:
        return [(row.tag, row.at + self.shift) for row in self.rows.values() if row.tag]

    def encode(self, *, sections: bool) -> bytes:
        body = bytearray(self._end)
        for row in self.rows.values():
            body[row.at : row.at + len(row.content)] = row.content
        segments = self._segments()
        body[HEADER.size : HEADER.size + len(segments)] = segments
        table = self._sections() if sections else b""
        count, names_at, names = 0, 0, b""
        if sections:
            count = 2 + len(self.rows)
            labels = [*self.rows, ".shstrtab"]
            names = b"\0" + b"".join(label.encode() + b"\0" for label in labels)
            names_at = self._end
            table += SECTION.pack(names.index(b".shstrtab"), 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
        names += bytes(-len(names) % 8)
        ident, segment_count = IDENT.ljust(16, b"\0"), len(segments) // SEGMENT.size
        body[: HEADER.size] = HEADER.pack(
            ident, 3, self.machine, 1, 0, HEADER.size, names_at + len(names) if sections else 0, 0,
            HEADER.size, SEGMENT.size, segment_count, SECTION.size, count, max(0, count - 1),
        )  # fmt: skip
        return bytes(body) + names + table

    def _segments(self) -> bytes:
        dynamic = self.rows[".dynamic"]
        rows = [
            (1, 7, 0, self._end, self.alignment),
            (2, 6, dynamic.at, len(dynamic.content), 8),
            (0x6474E551, 6, 0, 0, 16),
        ]
        if ".interp" in self.rows:
            rows.insert(0, (3, 4, self.rows[".interp"].at, len(self.rows[".interp"].content), 1))
        return b"".join(
            SEGMENT.pack(kind, flags, at, at + self.shift, at + self.shift, size, size, align)
            for kind, flags, at, size, align in rows
        )

    def _sections(self) -> bytes:
        number = {name: index for index, name in enumerate(self.rows, 1)}
        links = dict.fromkeys((".dynsym", ".dynamic", ".gnu.version_r", ".gnu.version_d"), number[".dynstr"])
        links |= dict.fromkeys((".hash", ".gnu.hash", ".gnu.version", ".rela.dyn"), number[".dynsym"])
        table, label = bytes(SECTION.size), 1
        for name, row in self.rows.items():
            place, link = (row.at + self.shift, row.at, len(row.content)), links.get(name, 0)
            table += SECTION.pack(label, row.kind, 2, *place, link, row.info, 8, row.entry)
            label += len(name) + 1
        return table


def _symbols(symbols: Sequence[Symbol], strings: _Strings, code: int) -> bytes:
    rows = [
        (strings.add(each.name), each.binding << 4 | 2, each.visibility, 7, code, 1)
        if each.defined
        else (strings.add(each.name), each.binding << 4, each.visibility, 0, 0, 0)
        for each in symbols
    ]
    return bytes(SYMBOL.size) + b"".join(SYMBOL.pack(*row) for row in rows)


def _relocations(count: int, got: int, machine: int) -> bytes:
    kind = GLOB_DAT.get(machine, 6)
    return b"".join(RELOCATION.pack(got + 8 * row, (row + 1) << 32 | kind, 0) for row in range(count))


def _sysv_hash(symbols: int) -> bytes:
    """One bucket that chains all symbols: 1, 2, ... to the last."""
    chain = [0, *range(2, symbols + 1), 0][: symbols + 1]
    return struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1 if symbols else 0, *chain)


def make_fatbin(containers: Iterable[Iterable[CodeTarget]], payload: bytes = bytes(range(64)), flags: int = 0) -> bytes:
    """Containers one after the other, each with an entry for every target. `flags`: 0x2000 LZ4, 0x8000 zstd."""
    made = bytearray()
    for targets in containers:
        body = b"".join(make_entry(target, payload, flags) for target in targets)
        made += CONTAINER.pack(0xBA55ED50, 1, 16, len(body)) + body
        made += bytes(-len(made) % 8)
    return bytes(made)


def make_entry(target: CodeTarget, payload: bytes = b"", flags: int = 0, kind: int | None = None) -> bytes:
    payload += bytes(-len(payload) % 8)
    major, minor = target.isa or (8, 1)
    size = 80 if target.kind == "ptx" else 64
    packed = len(payload) if flags else 0
    head = ENTRY.pack(
        KINDS[target.kind] if kind is None else kind, 0x0101, size, len(payload), packed, 0, minor, major, target.arch,
        0, 0, 0x11 | flags | VARIANTS[target.variant], 0, 2 * len(payload) if flags else 0,
    )  # fmt: skip
    return head.ljust(size, b"\0") + payload


def make_cubin(target: CodeTarget, abi: int = 8, note: bytes = b"") -> bytes:
    """A cubin that is a file of its own: its header, and a note of how ptxas was called, which alone marks an `f`."""
    accelerated = target.variant == "a"
    old = target.arch << 16 | target.arch | 0x500 | 0x800 * accelerated
    flags = target.arch << 8 | 2 | 8 * accelerated if abi == 8 else old
    ident = (b"\x7fELF\x02\x01\x01\x41" + bytes([abi])).ljust(16, b"\0")
    at, rows = (HEADER.size + len(note), 2) if note else (0, 0)
    header = HEADER.pack(ident, 2, CUDA, 1, 0, 0, at, flags, HEADER.size, SEGMENT.size, 0, SECTION.size, rows, 0)
    table = bytes(SECTION.size) + SECTION.pack(0, 7, 0, 0, HEADER.size, len(note), 0, 0, 1, 0)
    return header + (note + table if note else b"")


_EMPTY = struct.pack("<IIIIQI", 1, 1, 1, 0, 0, 0)  # GNU ld's index of no symbols


def _by_bucket(symbols: list[Symbol]) -> tuple[int, list[Symbol]]:
    """GNU's index wants symbols in the order of their buckets: (number of buckets, the symbols)."""
    count = max(1, len(symbols) // 2)
    return count, sorted(symbols, key=lambda each: _gnu(each.name) % count)


def _gnu_hash(symbols: list[Symbol], first: int, buckets: int) -> bytes:
    values = [_gnu(each.name) for each in symbols]
    heads, chain = [0] * buckets, []
    for index, value in enumerate(values):
        bucket = value % buckets
        heads[bucket] = heads[bucket] or first + index
        last = index + 1 == len(values) or values[index + 1] % buckets != bucket
        chain.append(value & ~1 | last)
    bloom = 0xFFFF_FFFF_FFFF_FFFF  # lets every question through
    return struct.pack(f"<IIIIQ{buckets}I{len(chain)}I", buckets, first, 1, 0, bloom, *heads, *chain)


def _gnu(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _sysv(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _verneed(required: Mapping[str, Sequence[str]], strings: _Strings) -> bytes:
    made, number = b"", 2
    for place, (library, nodes) in enumerate(required.items(), 1):
        rest = 0 if place == len(required) else 16 + 16 * len(nodes)
        made += struct.pack("<HHIII", 1, len(nodes), strings.add(library), 16 if nodes else 0, rest)
        for left, node in enumerate(nodes):
            following = 0 if left + 1 == len(nodes) else 16
            made += struct.pack("<IHHII", _sysv(node), 0, number, strings.add(node), following)
            number += 1
    return made


def _verdef(nodes: Sequence[str], strings: _Strings, base: str) -> bytes:
    if not nodes:
        return b""
    made = b""
    for place, node in enumerate([base, *nodes]):
        rest = 0 if place == len(nodes) else 28
        made += struct.pack("<HHHHIII", 1, 0 if place else 1, 1 + place, 1, _sysv(node), 20, rest)
        made += struct.pack("<II", strings.add(node), 0)
    return made


def _up(value: int, align: int) -> int:
    return -(-value // align) * align
