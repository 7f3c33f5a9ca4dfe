"""ELF files, fat binaries and cubins, written byte by byte: what the audit's tests read, without a compiler.

    make_elf(needed=["libc10.so"], undefined=["_ZN3c1010SymIntE"], fatbin=make_fatbin([[sm_90, ptx_90]]))

Layout: System V ABI, chapters 4 and 5; the LSB's symbol versioning; fat binaries as in imagegen/audit/fatbin.py.
A library made here for this machine's processor is a sound one: the loader takes it, and misses what is undefined.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from imagegen.audit.model import Target

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


def make_elf(  # noqa: C901, PLR0912, D417
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
    """
    table = [
        *(Symbol(name, defined=False) for name in undefined),
        *(Symbol(name, defined=False, binding=WEAK) for name in weak),
        *(each for each in symbols if not each.defined),
    ]
    first_defined = 1 + len(table)
    own = [*(Symbol(name) for name in exported), *(each for each in symbols if each.defined)]
    buckets, own = _by_bucket(own)
    table += own
    strings = _Strings()
    tags = [(1, strings.add(name)) for name in needed]
    for tag, text in ((14, soname), (15, rpath), (29, runpath)):
        if text is not None:
            tags.append((tag, strings.add(text)))
    requires, defines = _verneed(verneed or {}, strings), _verdef(verdef, strings, soname or "")
    names = [strings.add(each.name) for each in table]

    pieces: list[tuple[str, int, bytes]] = []  # (section, its type, content)
    if interpreter:
        pieces.append((".interp", 1, interpreter.encode() + b"\0"))
    pieces.append((".dynsym", 11, bytes(SYMBOL.size * (1 + len(table)))))  # written below, when places are known
    pieces.append((".dynstr", 3, bytes(strings.table)))
    if "sysv" in hashes:
        chain = [0, *range(2, len(table) + 1), 0][: len(table) + 1]
        pieces.append((".hash", 5, struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1 if table else 0, *chain)))
    if "gnu" in hashes or "gnu-empty" in hashes:
        empty = "gnu-empty" in hashes or not own
        pieces.append((".gnu.hash", 0x6FFFFFF6, _EMPTY if empty else _gnu_hash(own, first_defined, buckets)))
    if requires or defines:
        pieces.append((".gnu.version", 0x6FFFFFFF, struct.pack(f"<{1 + len(table)}H", 0, *[1] * len(table))))
    if requires:
        pieces.append((".gnu.version_r", 0x6FFFFFFE, requires))
    if defines:
        pieces.append((".gnu.version_d", 0x6FFFFFFD, defines))
    wanting = [index for index, each in enumerate(table, 1) if not each.defined]
    if wanting:
        pieces.append((".rela.dyn", 4, bytes(RELOCATION.size * len(wanting))))
        pieces.append((".got", 1, bytes(8 * len(wanting))))
    pieces.append((".text", 1, b"\xc3" + bytes(15)))
    extra = [(".nv_fatbin", 1, fatbin), ("__nv_relfatbin", 1, relfatbin)]
    pieces += [piece for piece in extra if piece[2]]
    pieces.append((".dynamic", 6, b""))

    segments = 3 + bool(interpreter)
    cursor = _up(HEADER.size + SEGMENT.size * segments + filling, 8)
    where: dict[str, int] = {}
    for name, _, content in pieces:
        where[name] = cursor
        cursor = _up(cursor + len(content), 8)

    def address(name: str) -> int:
        return where[name] + shift

    by_name = {name: content for name, _, content in pieces}
    tags += [(5, address(".dynstr")), (6, address(".dynsym")), (10, len(strings.table)), (11, SYMBOL.size)]
    for name, tag in ((".hash", 4), (".gnu.hash", 0x6FFFFEF5), (".gnu.version", 0x6FFFFFF0)):
        if name in where:
            tags.append((tag, address(name)))
    if requires:
        tags += [(0x6FFFFFFE, address(".gnu.version_r")), (0x6FFFFFFF, len(verneed or {}))]
    if defines:
        tags += [(0x6FFFFFFC, address(".gnu.version_d")), (0x6FFFFFFD, 1 + len(verdef))]
    if wanting:
        tags += [(7, address(".rela.dyn")), (8, RELOCATION.size * len(wanting)), (9, RELOCATION.size)]
        by_name[".rela.dyn"] = b"".join(
            RELOCATION.pack(address(".got") + 8 * row, index << 32 | GLOB_DAT.get(machine, 6), 0)
            for row, index in enumerate(wanting)
        )
    by_name[".dynamic"] = b"".join(PAIR.pack(*pair) for pair in [*tags, (0, 0)])
    by_name[".dynsym"] = bytes(SYMBOL.size) + b"".join(
        SYMBOL.pack(
            name,
            each.binding << 4 | (2 if each.defined else 0),
            each.visibility,
            7 if each.defined else 0,
            address(".text") if each.defined else 0,
            1 if each.defined else 0,
        )
        for name, each in zip(names, table, strict=True)
    )
    end = where[".dynamic"] + len(by_name[".dynamic"])
    rows = [(1, 7, 0, end, 1 << 16), (2, 6, where[".dynamic"], len(by_name[".dynamic"]), 8), (0x6474E551, 6, 0, 0, 16)]
    if interpreter:
        rows.insert(0, (3, 4, where[".interp"], len(by_name[".interp"]), 1))
    body = bytearray(end)
    for name, content in by_name.items():
        body[where[name] : where[name] + len(content)] = content
    body[HEADER.size : HEADER.size + SEGMENT.size * segments] = b"".join(
        SEGMENT.pack(kind, flags, at, at + shift, at + shift, size, size, align)
        for kind, flags, at, size, align in rows
    )
    labels = _Strings()
    headers = [bytes(SECTION.size)]
    details = {
        ".dynsym": (1, SYMBOL.size),
        ".rela.dyn": (0, RELOCATION.size),
        ".gnu.version_r": (len(verneed or {}), 0),
        ".gnu.version_d": (1 + len(verdef), 0),
    }  # (info, size of an entry)
    index_of = {name: index for index, (name, _, _) in enumerate(pieces, 1)}
    for name, kind, _ in pieces:
        link = index_of[".dynstr"] if name in {".dynsym", ".dynamic", ".gnu.version_r", ".gnu.version_d"} else 0
        link = index_of[".dynsym"] if name in {".hash", ".gnu.hash", ".gnu.version", ".rela.dyn"} else link
        info, entry = details.get(name, (0, 0))
        size = len(by_name[name])
        headers.append(SECTION.pack(labels.add(name), kind, 2, address(name), where[name], size, link, info, 8, entry))
    label, label_at = labels.add(".shstrtab"), _up(end, 8)
    table_at = _up(label_at + len(labels.table), 8)
    headers.append(SECTION.pack(label, 3, 0, 0, label_at, len(labels.table), 0, 0, 1, 0))
    body[: HEADER.size] = HEADER.pack(
        IDENT.ljust(16, b"\0"), 3, machine, 1, 0, HEADER.size, table_at if sections else 0, 0,
        HEADER.size, SEGMENT.size, segments, SECTION.size, len(headers) if sections else 0,
        len(headers) - 1 if sections else 0,
    )  # fmt: skip
    if not sections:
        return bytes(body)
    return (
        bytes(body).ljust(label_at, b"\0") + bytes(labels.table).ljust(table_at - label_at, b"\0") + b"".join(headers)
    )


def make_fatbin(containers: Iterable[Iterable[Target]], payload: bytes = bytes(range(64)), flags: int = 0) -> bytes:
    """Containers one after the other, each with an entry for every target. `flags`: 0x2000 LZ4, 0x8000 zstd."""
    made = bytearray()
    for targets in containers:
        body = b"".join(make_entry(target, payload, flags) for target in targets)
        made += CONTAINER.pack(0xBA55ED50, 1, 16, len(body)) + body
        made += bytes(-len(made) % 8)
    return bytes(made)


def make_entry(target: Target, payload: bytes = b"", flags: int = 0, kind: int | None = None) -> bytes:
    payload += bytes(-len(payload) % 8)
    major, minor = target.isa or (8, 1)
    size = 80 if target.kind == "ptx" else 64
    packed = len(payload) if flags else 0
    head = ENTRY.pack(
        KINDS[target.kind] if kind is None else kind, 0x0101, size, len(payload), packed, 0, minor, major, target.arch,
        0, 0, 0x11 | flags | VARIANTS[target.variant], 0, 2 * len(payload) if flags else 0,
    )  # fmt: skip
    return head.ljust(size, b"\0") + payload


def make_cubin(target: Target, abi: int = 8, note: bytes = b"") -> bytes:
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


def _verneed(wanted: Mapping[str, Sequence[str]], strings: _Strings) -> bytes:
    made, number = b"", 2
    for place, (library, nodes) in enumerate(wanted.items(), 1):
        rest = 0 if place == len(wanted) else 16 + 16 * len(nodes)
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
