"""GPU code inside files: NVIDIA's fat binaries, cubins that are files of their own, PTX as text.

A fat binary is a row of containers, one for each translation unit, 8-byte aligned. A container is a header (16 bytes:
magic, version, size of the header, size of all entries) and entries. An entry is a header (64 bytes or more) and its
code, compressed or not. Headers are never compressed, so the targets are readable without unpacking. NVIDIA publishes
no description. Measured on PyPI's wheels and on what nvcc 13.0 writes, and compared with NVIDIA's cuobjdump
(bench/journal/2026-11-21-binary-reader.md).

A caller that keeps only parts of a streamed file keeps all headers; `container` and `entry` return the sizes of pieces.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from imagegen.audit.elf import HEADER, NOTE, Sections
from imagegen.audit.model import CUDA, CodeGroup, CodeTarget
from imagegen.audit.window import Data, Holes, Unreadable, Window

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
CONTAINER_SIZE, ENTRY_SIZE = 16, 64  # bytes of a header that must be there
MOST_ENTRIES = 1 << 16  # of one file, with its containers; libcublasLt.so.13 has 8519

_BODY = struct.Struct("<8xQ")
# kind, size of the header, of the payload, minor and major version, architecture, flags
_ENTRY = struct.Struct("<H2xIQ8xHHI8xQ")
_PTX, _CUBIN = 1, 2
_EXACT, _FAMILY = 0x100000, 0x200000
_ARCHITECTURES = range(10, 1000)
_WHERE = "its GPU code"
_PTX_TEXT = re.compile(rb"\.version\s+(\d{1,2})\.(\d{1,2})\s+\.target\s+sm_(\d{2,3})([af]?)\b")
_PTX_LINE = re.compile(rb"\s*(//|/\*|\.version\b)")
_PTX_HEAD = 1 << 12  # bytes in which the version must stand
_CALL = re.compile(rb"-arch[ =]+sm_\d+([af]?)\b")  # of ptxas, in .note.nv.tkinfo
_MOST_NOTES, _LONGEST_NOTE = 64, 1 << 16
_Variant = Literal["", "a", "f"]
_VARIANTS: dict[str, _Variant] = {"": "", "a": "a", "f": "f"}


class FatbinEntry(NamedTuple):
    """One piece of code in a container. `target` is None for code that only the linker uses, which no driver runs."""

    target: CodeTarget | None
    header: int  # bytes
    payload: int  # bytes, behind the header


def container(header: bytes) -> int:
    """Return the size of a container with its header, in bytes.

    Raises:
        Unreadable: These are not the first 16 bytes of a container.
    """
    if len(header) < CONTAINER_SIZE or not header.startswith(MAGIC):
        raise Unreadable("a container of GPU code has no header")
    return CONTAINER_SIZE + int(_BODY.unpack_from(header)[0])


def entry(header: bytes) -> FatbinEntry:
    """Parse the first 64 bytes of an entry.

    Raises:
        Unreadable: The bytes contradict the format.
    """
    if len(header) < ENTRY_SIZE:
        raise Unreadable("an entry of GPU code ends within its header")
    kind, size, payload, minor, major, arch, flags = _ENTRY.unpack_from(header)
    if size < ENTRY_SIZE:
        raise Unreadable(f"an entry of GPU code claims a header of {size} bytes")
    if kind not in {_PTX, _CUBIN}:
        return FatbinEntry(None, size, payload)
    if arch not in _ARCHITECTURES:
        raise Unreadable(f"an entry of GPU code is for sm_{arch}")
    variant: _Variant = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
    return FatbinEntry(_target(kind, arch, variant, (major, minor)), size, payload)


@lru_cache(1024)  # files name the same few thousands of times
def _target(kind: int, arch: int, variant: _Variant, version: tuple[int, int]) -> CodeTarget:
    return CodeTarget("ptx", arch, variant, version) if kind == _PTX else CodeTarget("sass", arch, variant)


def containers(data: Data, start: int, end: int, holes: Holes = ()) -> Iterator[list[FatbinEntry]]:
    """Yield the entries of each container between `start` and `end`, in the order of the file.

    Raises:
        Unreadable: A header contradicts the format, or a piece ends beyond its container or section.
    """
    window = Window(data, holes)
    remaining = MOST_ENTRIES
    at = start
    while (at := window.find(MAGIC, at, end, _WHERE)) >= 0:
        stop = at + container(window.take(at, CONTAINER_SIZE, _WHERE))
        if stop > end:
            raise Unreadable(f"a container of GPU code at {at:#x} ends beyond its section")
        entries = []
        at += CONTAINER_SIZE
        remaining -= 1
        while at < stop:
            fatbin_entry = entry(window.take(at, min(ENTRY_SIZE, stop - at), _WHERE))
            at += fatbin_entry.header + fatbin_entry.payload
            if at > stop:
                raise Unreadable(f"GPU code ends beyond its container, which ends at {stop:#x}")
            entries.append(fatbin_entry)
            if len(entries) > remaining:
                break
        remaining -= len(entries)
        if remaining < 0:
            raise Unreadable(f"it claims more than {MOST_ENTRIES} pieces of GPU code")
        yield entries


def groups(data: Data, ranges: Iterable[tuple[int, int]], holes: Holes = ()) -> tuple[CodeGroup, ...]:
    """Return the containers in these parts of a file by their targets, without containers that no driver can use.

    Raises:
        Unreadable: As `containers`.
    """
    totals: dict[tuple[CodeTarget, ...], list[int]] = {}
    for entries in (
        container_entries for start, end in ranges for container_entries in containers(data, start, end, holes)
    ):
        sizes: dict[CodeTarget, int] = {}
        for fatbin_entry in entries:
            if fatbin_entry.target:
                sizes[fatbin_entry.target] = (
                    sizes.get(fatbin_entry.target, 0) + fatbin_entry.header + fatbin_entry.payload
                )
        targets = tuple(sorted(sizes))
        if targets:
            total = totals.setdefault(targets, [0] * (1 + len(targets)))
            for index, size in enumerate([1, *(sizes[target] for target in targets)]):
                total[index] += size
    return tuple(CodeGroup(targets, total[0], tuple(total[1:])) for targets, total in sorted(totals.items()))


def cubin(data: Data, holes: Holes = ()) -> CodeGroup:
    """Return the one target of a cubin that is a file of its own (an ELF file for machine 190).

    The architecture is in the header's flags, at a position that depends on the file's ABI version. Whether it is for
    exactly one architecture (`a`) or for its family (`f`) is only in a note with the command line of ptxas; without the
    note, a flag says that the code uses features of `a`. Source: LLVM's BinaryFormat/ELF.h, read 2026-11; measured on
    nvcc 13.0's output and on flashinfer-cubin 0.6.12.

    Raises:
        Unreadable: The file is not a cubin, or has an unknown ABI.
    """
    window = Window(data, holes)
    header = HEADER.unpack(window.take(0, HEADER.size, "its header"))
    abi, flags = header[0][8], header[7]
    if header[2] != CUDA or abi not in {7, 8}:
        raise Unreadable(f"a cubin of ABI {abi}, which is not known")
    arch, exact = (flags & 0xFF, flags & 0x800) if abi == 7 else (flags >> 8 & 0xFF, flags & 8)
    if arch not in _ARCHITECTURES:
        raise Unreadable(f"a cubin for sm_{arch}")
    match = _CALL.search(_notes(window))
    variant = match[1].decode() if match else "a" if exact else ""
    return CodeGroup((CodeTarget("sass", arch, _VARIANTS[variant]),), 1, (window.size,))


def ptx(data: Data) -> CodeGroup | None:
    """Return the target of a file of PTX, which begins with its version; None for any other text or bytes."""
    head = bytes(data[:_PTX_HEAD])
    match = _PTX_TEXT.search(head) if _PTX_LINE.match(head) else None
    if not match:
        return None
    target = CodeTarget("ptx", int(match[3]), _VARIANTS[match[4].decode()], (int(match[1]), int(match[2])))
    return CodeGroup((target,), 1, (len(data),))


def _notes(window: Window) -> bytes:
    rows = [row for row in Sections(window).of(NOTE) if row.size < _LONGEST_NOTE][:_MOST_NOTES]
    if not rows:
        return b""
    first, last = min(row.offset for row in rows), max(row.offset + row.size for row in rows)
    if last - first < _LONGEST_NOTE:  # as ptxas puts them
        notes = window.take(first, last - first, "its notes")
        return b"".join(notes[row.offset - first :][: row.size] for row in rows)
    return b"".join(window.take(row.offset, row.size, "a note") for row in rows)
