"""Bounds-checked access to a file's bytes: reads beyond its end or in ranges that were not kept raise Unreadable."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Sequence

Holes = Sequence[tuple[int, int]]  # (start, end) of parts that were not kept and read as zeros; sorted, none overlap
_STEP = 1 << 20  # bytes searched at a time, at most


class Unreadable(ValueError):
    """A file that contradicts its format, or itself; the message is one line with the place."""


class OnDisk:
    """An open file, of which only the requested parts are read.

    If the file is shortened meanwhile, it is unreadable, while access to a mapped file would end the process. `head` is
    the beginning of the file if it was read already; it is not read again.
    """

    __slots__ = ("_descriptor", "_head", "_size")

    def __init__(self, descriptor: int, size: int, head: bytes = b"") -> None:
        self._descriptor, self._size, self._head = descriptor, size, head

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        if stop <= len(self._head):
            return self._head[start:stop]
        data = os.pread(self._descriptor, stop - start, start)
        while len(data) < stop - start:  # the kernel gives at most 2 GiB at once
            chunk = os.pread(self._descriptor, stop - start - len(data), start + len(data))
            if not chunk:
                raise Unreadable("it became shorter while it was read")
            data += chunk
        return data


Data = bytes | bytearray | mmap.mmap | memoryview | OnDisk


class Window:
    """The bytes of one file. Reads return copies, so that no view outlives a closed mmap.

    A range must lie inside the file and outside its holes; otherwise Unreadable is raised before anything is allocated.
    """

    __slots__ = ("_data", "_ends", "_holes", "size")

    def __init__(self, data: Data, holes: Holes = ()) -> None:
        self._data = data
        self._holes = holes
        self._ends = [end for _, end in holes]
        self.size = len(data)

    def take(self, at: int, size: int, label: str) -> bytes:
        """Return `size` bytes at offset `at`. `label` names the range in the error, as in "its section table"."""
        if at < 0 or size < 0 or at + size > self.size:
            raise Unreadable(f"{label} ({size} bytes at {at:#x}) ends beyond the file's {self.size} bytes")
        if self._holes and size and self._next_hole(at) < at + size:
            raise Unreadable(f"{label} (at {at:#x}) lies in a part that was not kept")
        return bytes(self._data[at : at + size])

    def find(self, needle: bytes, at: int, end: int, label: str) -> int:
        """Return the offset of the next `needle` that ends before `end`; -1 if there is none."""
        step = 64  # the needle is mostly near
        while at + len(needle) <= end:
            stop = max(at + len(needle), min(at + step, end, self._next_hole(at)))
            offset = self.take(at, stop - at, label).find(needle)
            if offset >= 0:
                return at + offset
            at, step = stop - len(needle) + 1, min(16 * step, _STEP)
        return -1

    def _next_hole(self, at: int) -> int:
        """Return the start of the first hole that ends behind `at`."""
        first = bisect_right(self._ends, at)
        return self._holes[first][0] if first < len(self._holes) else self.size
