"""Collect the parts of a file that an audit needs from a stream of chunks, and examine them in the end.

If no reader concerns a file, only its first bytes are read. A small file is kept in memory, a large one as a sparse
copy on a disk.
"""

from __future__ import annotations

from pathlib import Path

from imagegen.audit.examine import HEAD, concerns, examine
from imagegen.audit.model import File
from imagegen.audit.sparse_copy import Sparse, left_out
from imagegen.audit.window import Holes

# Bytes. Wheels hold thousands of small libraries and few large ones; a build holds three files at a time.
IN_MEMORY = 4 << 20


class Collector:
    """Collects a file's bytes from chunks of any size. A context manager, because a stream may end early.

    `size` is the file's size in bytes. `scratch` is a directory on a disk with enough free space for the file's sparse
    copy, or with `whole` for a full copy.
    """

    def __init__(self, size: int, scratch: Path, *, whole: bool = False) -> None:
        self._size, self._scratch, self._whole = size, scratch, whole
        self._head = b""
        self.copy: _Memory | Sparse | None = None
        self.idle = False  # nothing more of the file is wanted
        self.partial = False  # something was left out

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.copy:
            self.copy.close()

    def write(self, chunk: bytes) -> None:
        """Add the file's next bytes. Raises OSError when the disk is full."""
        if self.idle:
            return
        if self.copy is None:
            self._head += chunk
            if len(self._head) < min(HEAD, self._size):
                return
            if not concerns(self._head):
                self.idle = True
                return
            if self._size <= IN_MEMORY:
                self.copy = _Memory()
            else:
                self.copy = Sparse(self._size, self._scratch, None if self._whole else left_out(self._head, self._size))
            chunk, self._head = self._head, b""
        self.copy.write(chunk)

    def finish(self, sha256: str | None = None, *, executable: bool = False) -> File:
        """Return the scan of the file, when all of it was written."""
        if self.copy is None:
            return File(self._size, sha256, executable)
        try:
            scan = self.copy.examine(self._size, sha256, executable=executable)
            self.partial = bool(self.copy.holes)
            return scan
        finally:
            self.copy.close()


class _Memory:
    """A small file, whole."""

    holes: Holes = ()

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._chunks.append(data)

    def examine(self, size: int, sha256: str | None, *, executable: bool) -> File:
        return examine(b"".join(self._chunks), size=size, sha256=sha256, executable=executable)

    def close(self) -> None:
        self._chunks.clear()
