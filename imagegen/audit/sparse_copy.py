"""A large file as a sparse copy in a temporary file without a name, made as the file streams by.

The copy has the parts that readers open: the beginnings of the segments, in which linkers put the tables that the
loader reads, the dynamic section, the section table, and the headers of GPU code wherever they are. Other parts are
holes. If readers would have to read a hole, the file counts as unreadable, because it was made in some other way or is
hostile. All bytes that readers get are the file's own.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from imagegen.audit.elf import HEADER
from imagegen.audit.examine import examine
from imagegen.audit.fatbin import CONTAINER_SIZE, ENTRY_SIZE, MAGIC, container, entry
from imagegen.audit.model import File
from imagegen.audit.window import OnDisk, Unreadable

# Bytes. Less is copied: a file system keeps pages, and skipping costs a call.
WORTH_SKIPPING = 4 << 10
NAME_BYTES = 64 << 10  # before a section table, or before a segment, in which the names of sections may lie
SYMBOL_BYTES = 32 << 20  # not loaded; in front of less, LLVM's linker puts the names of sections (vllm 0.24's vllm-rs)
TABLE_BYTES = 12 << 20  # of a segment; libtorch_cpu's tables, the largest, end after 8.2 MB (torch 2.11.0, 2026-11)
_ELF64 = b"\x7fELF\2\1"  # little-endian
_SEGMENT = struct.Struct("<2IQ16xQ16x")  # type, flags, offset, size; System V ABI, chapter 5
_MAGIC = re.compile(re.escape(MAGIC))  # found four times as fast as by bytes.find (Python 3.11)
_LOADED, _DYNAMIC = 1, 2  # types of segments
_CODE = 1  # a segment's flag


class FileRange(NamedTuple):
    """A part of a file, and whether there may be GPU code in it."""

    start: int
    end: int
    searched: bool

    def without(self, start: int, end: int) -> Iterator[FileRange]:
        """Yield the rest of this part without another part: before it, and after it."""
        yield self._replace(end=min(self.end, start))
        yield self._replace(start=max(self.start, end))


class Sparse:
    """A large file in a temporary one, without `ranges` and without the payloads of its GPU code; None: with all of it.

    At any time the next bytes are copied up to `_copied`, then skipped up to `_skipped`; then comes an entry's header
    where that is before `_body`, the end of a container, and else the next container or part is looked for.
    """

    def __init__(self, size: int, scratch: Path, ranges: Sequence[FileRange] | None) -> None:
        self._size = size
        self._ranges = deque(ranges or ())
        self.file = tempfile.TemporaryFile(dir=scratch, buffering=0)  # noqa: SIM115 - the collector closes it
        self._rest = b""  # the stream's end where it may be the beginning of a header
        self._at = 0  # where that is in the file
        self._copied = size if ranges is None else 0
        self._skipped = self._body = 0
        self._gap = 0  # where a part that was searched, and left out, has been left
        self.holes: list[tuple[int, int]] = []  # skipped parts

    def write(self, data: bytes) -> None:
        start = 0
        if self._rest:
            position = self._at + len(self._rest)
            # So many more bytes decide about a header that begins in the rest; a whole megabyte need not be copied.
            self._take(self._rest + data[:ENTRY_SIZE], 0)
            start = self._at - position
        if start >= 0:
            self._take(data, start)

    def _take(self, data: bytes, start: int) -> None:
        """Process `data` from `start` on, which is at `_at` in the file; undecided bytes at its end become the rest."""
        base, view = self._at - start, memoryview(data)
        while (offset := self._at - base) < len(data) and self._decided(data, offset):
            if self._at < self._copied:
                piece = view[offset : offset + self._copied - self._at]
                self._copy(piece)
                self._at += len(piece)
            else:
                self._at += min(len(data) - offset, self._skipped - self._at)
        self._rest = data[self._at - base :]

    def examine(self, size: int, sha256: str | None, *, executable: bool) -> File:
        self._copy(memoryview(self._rest))
        self.file.truncate(size)
        data = OnDisk(self.file.fileno(), size)
        return examine(data, size=size, sha256=sha256, executable=executable, holes=self.holes)

    def close(self) -> None:
        self.file.close()

    def _copy(self, piece: memoryview) -> None:
        written = 0
        while written < len(piece):
            written += os.pwrite(self.file.fileno(), piece[written:], self._at + written)

    def _decided(self, data: bytes, start: int) -> bool:
        """Return whether the next bytes, `data` from `start` on, are decided; False if there are too few."""
        if self._at < max(self._copied, self._skipped):
            return True
        return self._entry(data, start) if self._at < self._body else self._search(data, start)

    def _entry(self, data: bytes, start: int) -> bool:
        size = min(ENTRY_SIZE, self._body - self._at)
        if len(data) - start < size:
            return False
        try:
            fatbin_entry = entry(data[start : start + size])
        except Unreadable:
            self._copied = self._body  # the reader reports the fault
            return True
        self._copied = self._at + fatbin_entry.header
        end = self._copied + fatbin_entry.payload
        if end > self._body:
            self._copied = self._body
        elif fatbin_entry.payload < WORTH_SKIPPING:
            self._copied = end
        else:
            self._skip_to(end)
        return True

    def _search(self, data: bytes, start: int) -> bool:
        part = self._next_range()
        if part and part.start <= self._at and not part.searched:
            self._skip_to(part.end)
            return True
        stop = len(data)
        if part:
            stop = min(stop, start + (part.start if self._at < part.start else part.end) - self._at)
        if (match := _MAGIC.search(data, start, stop)) is None or match.start() > start:
            # The last bytes may be the beginning of the next container.
            boundary = match.start() if match else stop if stop < len(data) else max(start, stop - len(MAGIC) + 1)
            end = self._at + boundary - start
            if part and part.start <= self._at and (boundary - start > WORTH_SKIPPING or self._at == self._gap):
                self._skip_to(end)
                self._gap = end
            else:
                self._copied = end
            return boundary > start
        if len(data) - start < CONTAINER_SIZE:
            return False
        end = self._at + container(data[start : start + CONTAINER_SIZE])
        self._copied = self._at + CONTAINER_SIZE
        if end <= self._size:
            self._body = end
        return True

    def _next_range(self) -> FileRange | None:
        """Return the omitted part at the current position, or the next one."""
        while self._ranges and self._ranges[0].end <= self._at:
            self._ranges.popleft()
        return self._ranges[0] if self._ranges else None

    def _skip_to(self, end: int) -> None:
        start = max(self._at, self._copied)
        if self.holes and self.holes[-1][1] == start:
            start = self.holes.pop()[0]
        self.holes.append((start, end))
        self._skipped = end


def left_out(head: bytes, size: int) -> list[FileRange]:
    """Return the parts of an ELF64 file that readers hardly ever open, by its first bytes.

    They are machine code in a segment of its own (a segment that begins with the file holds tables too), bytes long
    after the beginning of any other segment unless they are GPU code, and parts that are not loaded, as symbols and
    data for debuggers. The headers, the section table, the sections' names before it and the dynamic section are never
    left out.
    """
    if len(head) < HEADER.size or head[: len(_ELF64)] != _ELF64:
        return []
    _, _, _, _, _, at, table, _, _, row, count, section, sections, _ = HEADER.unpack_from(head)
    if row != _SEGMENT.size or at + row * count > len(head):
        return []
    segments = list(_SEGMENT.iter_unpack(head[at : at + row * count]))
    loaded = sorted((offset, offset + length, flags) for kind, flags, offset, length in segments if kind == _LOADED)
    needed = [(offset, offset + length) for kind, _, offset, length in segments if kind == _DYNAMIC]
    ranges = [*_within(loaded), *_between(loaded, size)]
    headers = [(0, HEADER.size), (at, at + row * count)]  # a hostile file's code may begin there
    for start, end in [*headers, *needed, (table - NAME_BYTES, table + section * sections)]:
        ranges = [piece for part in ranges for piece in part.without(start, end)]
    return sorted(part for part in ranges if 0 < part.start < part.end - WORTH_SKIPPING and part.end <= size)


def _within(loaded: Iterable[tuple[int, int, int]]) -> Iterator[FileRange]:
    for start, end, flags in loaded:
        code = bool(flags & _CODE and start)
        yield FileRange(start if code else start + TABLE_BYTES, end, searched=not code)


def _between(loaded: Sequence[tuple[int, int, int]], size: int) -> Iterator[FileRange]:
    ends = accumulate((end for _, end, _ in loaded), max)
    following = [start for start, _, _ in loaded[1:]] + [size]
    for end, start in zip(ends, following, strict=False):
        if start - end > SYMBOL_BYTES:
            yield FileRange(end, start - NAME_BYTES, searched=False)
