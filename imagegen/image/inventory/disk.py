"""A directory of this machine as a file tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from imagegen.audit.model import File
from imagegen.image.inventory.layers import FLAGS, examined
from imagegen.image.inventory.tree import Directory, Node, Regular, SymbolicLink

# Files of these kinds are not opened: most of an environment's files are, and none of them is loaded or run by name.
_TEXT_KINDS = """
.py .pyc .pyi .pyx .pxd .h .hpp .hh .inl .cuh .cu .c .cc .cpp .hip .proto .f90 .js .mjs .css .map .ts .jinja .cmake .pc
.txt .md .rst .json .jsonl .yaml .yml .toml .cfg .ini .csv .tsv .xml .html .htm .ipynb .typed .mo .po .svg .png .jpg
.gif .ttf .woff .woff2 .gz .zip .npz .npy .whl
"""
_DIRECTORY = Directory()
_TEXT = frozenset(_TEXT_KINDS.split())


class Disk:
    """See `Tree`. `root` is what paths begin at."""

    def __init__(self, root: Path) -> None:
        self._root = "" if root == Path("/") else str(root)

    def look(self, path: str) -> Node | None:
        try:
            return _node(self._root + path, os.lstat(self._root + path))
        except (OSError, ValueError):  # a name with a NUL in it
            return None

    def entries(self, path: str) -> Iterator[tuple[str, Node]]:
        try:
            with os.scandir(self._root + path) as found:
                for entry in found:
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
            if node.size and path[path.rfind(".", path.rfind("/")) :] not in _TEXT
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
        return _node(entry.path, status)
    except OSError:
        return None


def _node(path: str, status: os.stat_result) -> Node | None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return Regular(status.st_size, bool(mode & 0o111))
    if stat.S_ISLNK(mode):
        return SymbolicLink(os.readlink(path))
    return Directory() if stat.S_ISDIR(mode) else None
