"""A stand-in for libcuda.so.1, where there is no driver: enough for compiled modules to load, and nothing else.

The driver's library comes from the host, so an image has none, and a module that is linked with it does not even load
where there is no GPU. The stand-in has the functions that such modules name, and each answers CUDA_ERROR_NO_DEVICE: it
is a file of a few kilobytes, written here byte by byte, since an image need not hold a compiler.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

from smoke.elf import DYNAMIC, HEADER, MAGIC, SECTION, SHT_DYNAMIC, SHT_DYNSYM, SYMBOL

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE (cuda.h)
# What the CUDA runtime asks for by name before anything else.
ALWAYS = ("cuDeviceGetCount", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuInit")
PAGE = 1 << 16  # the largest that a Linux on these machines has
SEGMENT = struct.Struct("<IIQQQQQQ")
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
SHT_PROGBITS, SHT_STRTAB, SHT_HASH = 1, 3, 5
READ, WRITE, EXECUTE = 4, 2, 1
# (ELF's name of the machine, "return 100")
MACHINES = {
    "x86_64": (62, bytes.fromhex("b864000000c3")),  # mov eax, 100; ret
    "aarch64": (183, struct.pack("<II", 0x52800C80, 0xD65F03C0)),  # mov w0, #100; ret
}


@functools.cache
def driver_here() -> bool:
    """Return whether this machine's loader finds a libcuda of its own; once, since it finds a stub that was loaded."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def write(folder: Path, functions: Iterable[str]) -> list[str]:
    """Put the library into a folder that goes on LD_LIBRARY_PATH; also as libcuda.so, for a linker's -lcuda.

    Returns the functions it has.
    """
    names = sorted({*functions, *ALWAYS})
    content = library(names, platform.machine())
    for name in (LIBRARY, "libcuda.so"):
        (folder / name).write_bytes(content)
    return names


def library(names: list[str], machine: str) -> bytes:
    """A shared object with these functions. Two segments: what is read and run, and what the loader writes to."""
    number, code = MACHINES[machine]
    strings, places = _strings([LIBRARY, *names])
    at = HEADER.size + 4 * SEGMENT.size
    symbols_at = at
    strings_at = symbols_at + SYMBOL.size * (len(names) + 1)
    hash_at = _up(strings_at + len(strings), 8)
    table = _hash(len(names) + 1)
    code_at = _up(hash_at + len(table), 16)
    dynamic_at = _up(code_at + len(code), PAGE)
    symbols = SYMBOL.pack(0, 0, 0, 0, 0, 0) + b"".join(
        SYMBOL.pack(places[name], 0x12, 0, 4, code_at, len(code))
        for name in names  # a global function
    )
    entries = ((14, places[LIBRARY]), (4, hash_at), (5, strings_at), (6, symbols_at), (10, len(strings)))
    dynamic = b"".join(DYNAMIC.pack(tag, value) for tag, value in (*entries, (11, SYMBOL.size), (0, 0)))
    sections_at = dynamic_at + len(dynamic)
    labels, named = _strings([".dynsym", ".dynstr", ".hash", ".text", ".dynamic", ".shstrtab"])
    rows = [
        (".dynsym", SHT_DYNSYM, 2, symbols_at, len(symbols), 2, 1, SYMBOL.size),
        (".dynstr", SHT_STRTAB, 2, strings_at, len(strings), 0, 0, 0),
        (".hash", SHT_HASH, 2, hash_at, len(table), 1, 0, 4),
        (".text", SHT_PROGBITS, 6, code_at, len(code), 0, 0, 0),
        (".dynamic", SHT_DYNAMIC, 3, dynamic_at, len(dynamic), 2, 0, DYNAMIC.size),
        (".shstrtab", SHT_STRTAB, 0, sections_at + 7 * SECTION.size, len(labels), 0, 0, 0),
    ]
    sections = bytes(SECTION.size) + b"".join(
        SECTION.pack(named[name], kind, flags, where if flags else 0, where, size, link, info, 8, entry)
        for name, kind, flags, where, size, link, info, entry in rows
    )
    segments = (
        (PT_LOAD, READ | EXECUTE, 0, code_at + len(code), PAGE),
        (PT_LOAD, READ | WRITE, dynamic_at, len(dynamic), PAGE),
        (PT_DYNAMIC, READ | WRITE, dynamic_at, len(dynamic), 8),
        (PT_GNU_STACK, READ | WRITE, 0, 0, 16),
    )
    header = HEADER.pack(
        MAGIC.ljust(16, b"\0"), 3, number, 1, 0, HEADER.size, sections_at, 0,
        HEADER.size, SEGMENT.size, 4, SECTION.size, 7, 6,
    )  # fmt: skip
    content = bytearray(sections_at)
    pieces = ((0, header + _segments(segments)), (symbols_at, symbols), (strings_at, strings), (hash_at, table))
    for where, piece in (*pieces, (code_at, code), (dynamic_at, dynamic)):
        content[where : where + len(piece)] = piece
    return bytes(content) + sections + labels


def _segments(rows: Iterable[tuple[int, int, int, int, int]]) -> bytes:
    return b"".join(SEGMENT.pack(kind, flags, at, at, at, size, size, align) for kind, flags, at, size, align in rows)


def _strings(names: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """A string table and where each name is in it."""
    table, places = bytearray(b"\0"), {}
    for name in names:
        places[name] = len(table)
        table += name.encode() + b"\0"
    return bytes(table), places


def _hash(symbols: int) -> bytes:
    """The loader's index with one bucket that chains all symbols: 1, 2, ... to the last."""
    chain = [0, *range(2, symbols), 0][:symbols]
    return struct.pack(f"<{3 + symbols}I", 1, symbols, 1 if symbols > 1 else 0, *chain)


def _up(value: int, align: int) -> int:
    return -(-value // align) * align
