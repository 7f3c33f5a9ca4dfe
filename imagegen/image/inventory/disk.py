"""A directory of this machine as a file tree, and the scans of its files for an audit.

Python's threads take turns, and each call of the kernel is one: 18,000 files that are in the page cache took eight
threads 1.7 s of the processor's and one thread 1.1 s (2026-11-21). A second process for half of them cost more than it
gave. So files in the page cache are examined one after the other, the others while many are waited for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from imagegen.audit.examine import HEAD, concerns, examine
from imagegen.audit.model import File
from imagegen.audit.window import OnDisk
from imagegen.core.layer_tree import SymbolicLink
from imagegen.image.inventory.tree import Directory, Node, Regular

ReadFile = tuple[str, Regular]  # a path, and what lay there

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
# Readers wait for the disk at once: of an audit with 7.9 GB, nothing of it in the page cache, this took 8.2 s with one,
# 4.2 s with four, 3.1 s with eight (two busy cores, 2026-11-21).
_READERS = 8
_BATCH = 8  # files that one of them takes at a time
_HEAD = 2 * HEAD  # bytes read at once: in a third of flashinfer's cubins they hold the notes too


def examined(files: Sequence[ReadFile]) -> dict[str, File]:
    """Scan files, by path. A file that cannot be read has the reason; none raises."""
    scans: dict[str, File] = {}
    waiting: list[ReadFile] = []
    batches: list[Future[dict[str, File]]] = []
    with ThreadPoolExecutor(_READERS) as pool:
        for path, node in sorted(files, key=lambda file: -file[1].size):  # the largest first, not at the end
            if file := _examine(path, node, flags=os.RWF_NOWAIT):
                scans[path] = file
            else:
                waiting.append((path, node))
            if len(waiting) == _BATCH:
                batches.append(pool.submit(_waited, waiting))
                waiting = []
        scans |= _waited(waiting)
        for batch in batches:
            scans |= batch.result()
    return scans


def _waited(files: Iterable[ReadFile]) -> dict[str, File]:
    return {path: file for path, node in files if (file := _examine(path, node, flags=0))}


def _examine(path: str, node: Regular, *, flags: int) -> File | None:
    """Scan one file; None if reading would block and `flags` of the first read forbid that."""
    head = bytearray(_HEAD)
    try:
        with open(os.open(path, FLAGS), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            size, executable = status.st_size, bool(status.st_mode & 0o111)
            if not stat.S_ISREG(status.st_mode):
                return File(size, executable=executable)
            try:
                count = os.preadv(file.fileno(), [head], 0, flags)
            except OSError:
                if not flags:
                    raise
                return None  # not in the page cache, or a file system that cannot tell
            if flags and count < min(size, _HEAD):
                return None
            start = bytes(head[:count])
            if not concerns(start[:HEAD]):
                return File(size, executable=executable)
            return examine(OnDisk(file.fileno(), size, start), size=size, executable=executable)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        return File(node.size, executable=node.executable, unreadable=f"it cannot be opened: {why or error}")


# Files of these kinds are not opened: most of an environment's files are, and none of them is loaded or run by name.
_UNREAD_KINDS = """
.py .pyc .pyi .pyx .pxd .h .hpp .hh .inl .cuh .cu .c .cc .cpp .hip .proto .f90 .js .mjs .css .map .ts .jinja .cmake .pc
.txt .md .rst .json .jsonl .yaml .yml .toml .cfg .ini .csv .tsv .xml .html .htm .ipynb .typed .mo .po .svg .png .jpg
.gif .ttf .woff .woff2 .gz .zip .npz .npy .whl
"""
_DIRECTORY = Directory()
_UNREAD = frozenset(_UNREAD_KINDS.split())


class Disk:
    """The `FileTree` of a directory of this machine: paths begin at `root`."""

    def __init__(self, root: Path) -> None:
        self._root = "" if root == Path("/") else str(root)

    def look(self, path: str) -> Node | None:
        try:
            return _node_of(self._root + path, os.lstat(self._root + path))
        except (OSError, ValueError):  # a name with a NUL in it
            return None

    def entries(self, path: str) -> Iterator[tuple[str, Node]]:
        try:
            with os.scandir(self._root + path) as listing:
                for entry in listing:
                    if node := _entry(entry):
                        yield entry.name, node
        except OSError:
            return

    def read(self, path: str, limit: int) -> bytes | None:
        try:
            with open(os.open(self._root + path, FLAGS), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return None
                content = file.read(limit + 1)
        except (OSError, ValueError):
            return None
        return content if len(content) <= limit else None

    def examine(self, files: Mapping[str, Regular]) -> Mapping[str, File]:
        sized = [
            (self._root + path, node)
            for path, node in files.items()
            if node.size and path[path.rfind(".", path.rfind("/")) :] not in _UNREAD
        ]
        read = examined(sized)
        return {
            path: read.get(self._root + path) or File(node.size, executable=node.executable)
            for path, node in files.items()
        }


def _entry(entry: os.DirEntry[str]) -> Node | None:
    try:
        if entry.is_dir(follow_symlinks=False):
            return _DIRECTORY
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(mode := status.st_mode):  # nearly all
            return Regular(status.st_size, mode & 0o111 != 0)
        return _node_of(entry.path, status)
    except OSError:
        return None


def _node_of(path: str, status: os.stat_result) -> Node | None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return Regular(status.st_size, bool(mode & 0o111))
    if stat.S_ISLNK(mode):
        return SymbolicLink(os.readlink(path))
    return Directory() if stat.S_ISDIR(mode) else None
