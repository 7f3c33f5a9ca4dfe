"""ELF files and GPU code that are damaged, and what holds for any bytes that an audit reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from hypothesis import strategies as st

from imagegen.audit.examine import examine
from imagegen.audit.model import CodeTarget, File
from imagegen.audit.window import Window
from tests.support.elf_files import AARCH64, Symbol, make_cubin, make_elf, make_fatbin

# Work that any file may cause, in reads and in bytes read: beside what the file's size explains.
READS, BYTES = 300_000, 16 << 20


def hold(data: bytes) -> File:
    """Check that any bytes are parsed in bounded time and memory, with a reason of one line where they are refused."""
    with _counted() as work:
        file = examine(data, size=len(data))
    assert work[0] <= len(data) + READS
    assert work[1] <= 64 * len(data) + BYTES
    assert file.size == len(data)
    if file.unreadable is not None:
        assert len(file.unreadable) < 200
        assert file.unreadable.isprintable()
    if file.elf:
        names = [*file.elf.undefined, *file.elf.exported, *file.elf.needed, *file.elf.provides]
        names += [node for nodes in file.elf.requires.values() for node in nodes]
        assert sum(map(len, names)) <= 16 * len(data) + (1 << 18)
    assert sum(group.count for group in file.code) <= len(data) // 16 + 1
    assert sum(size for group in file.code for size in group.sizes) <= len(data)
    return file


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Counts what is taken of files meanwhile: [reads, bytes]."""
    work, take = [0, 0], Window.take

    def counting(self: Window, at: int, size: int, what: str) -> bytes:
        taken = take(self, at, size, what)
        work[0] += 1
        work[1] += len(taken)
        return taken

    Window.take = counting  # type: ignore[method-assign]
    try:
        yield work
    finally:
        Window.take = take  # type: ignore[method-assign]


@cache
def seeds() -> dict[str, bytes]:
    """Sound files of every kind, by name."""
    sass, ptx = [CodeTarget("sass", 80), CodeTarget("sass", 100, "f")], CodeTarget("ptx", 90, "", (8, 7))
    code = make_fatbin([sass, [CodeTarget("sass", 90, "a"), ptx], []], bytes(16))
    versions = {"libc.so.6": ["GLIBC_2.14", "GLIBC_2.34"], "libm.so.6": ["GLIBC_2.29"]}
    full = make_elf(
        ["libc10.so", "libc.so.6"], ["_Z3foov", "memcpy"], ["bar", "baz", "qux"], "$ORIGIN", "$ORIGIN/..:/lib",
        versions, ["NODE_1", "NODE_2"], code, soname="lib.so", weak=["weak"], relfatbin=code,
        symbols=[Symbol("unique", binding=10), Symbol("hidden", visibility=2)], hashes=["gnu", "sysv"],
    )  # fmt: skip
    return {
        "full": full,
        "gnu": make_elf(undefined=["a"], exported=["b", "c", "d"], verneed=versions),
        "bare": make_elf(["libc.so.6"], ["a"], ["b"], fatbin=code, sections=False),
        "relocated": make_elf(undefined=["a", "b"], hashes=[], sections=False, shift=1 << 20),
        "empty-hash": make_elf(undefined=["a", "b"], hashes=["gnu-empty"]),
        "program": make_elf(["libc.so.6"], interpreter="/lib/ld.so", machine=AARCH64),
        "cubin": make_cubin(CodeTarget("sass", 90, "a")),
        "cubin-note": make_cubin(CodeTarget("sass", 100), note=b"-arch sm_100f \0"),
        "fatbin": code,
        "ptx": b"// x\n.version 8.7\n.target sm_90a\n",
    }


_NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1, 0xBA55ED50]),
    st.integers(0, 4096),
)
_EDIT = st.tuples(st.integers(0, 1 << 14), st.sampled_from("BHIQ"), _NUMBERS)
_MOVE = st.tuples(*[st.integers(0, 1 << 14)] * 3)  # from, to, how many bytes


def _damaged(name: str, edits: list[tuple[int, str, int]], moves: list[tuple[int, int, int]], end: int | None) -> bytes:
    data = bytearray(seeds()[name])
    for start, to, size in moves:
        piece = data[start % len(data) :][: size % 512]
        data[to % len(data) : to % len(data) + len(piece)] = piece
    for at, width, value in edits:
        size = struct.calcsize(width)
        place = at % max(1, len(data) - size)
        data[place : place + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(data[:end])


DAMAGED = st.builds(
    _damaged,
    st.sampled_from(sorted(seeds())),
    st.lists(_EDIT, max_size=6),
    st.lists(_MOVE, max_size=2),
    st.none() | st.integers(0, 4096),
)
