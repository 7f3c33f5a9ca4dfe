"""A file tree as a process sees it that has the tree as its root.

Links are followed inside the tree: an absolute one begins at its root, and `..` ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from imagegen.audit.model import File
from imagegen.core.layer_tar import PATH_MAX
from imagegen.core.layer_tree import SymbolicLink, follow_links

_MAX_DEPTH = 64  # directories below the one that is walked: environments have a dozen


@dataclass(frozen=True, slots=True)
class Directory:
    pass


@dataclass(frozen=True, slots=True)
class Regular:
    """A regular file; `size` in bytes."""

    size: int
    executable: bool = False


Node: TypeAlias = SymbolicLink | Directory | Regular


class FileTree(Protocol):
    """Paths are absolute in the tree and lead through no link: see `place`. Devices and pipes are left out. No method
    raises for an unreadable file, which is absent or has a scan with the reason.
    """

    def look(self, path: str) -> Node | None:
        """Return the node at a path; for a link, the link itself."""

    def entries(self, path: str) -> Iterable[tuple[str, Node]]:
        """Names and nodes in a directory, in no order."""

    def read(self, path: str, limit: int) -> bytes | None:
        """A whole file of text; None where it is longer than `limit` bytes, or cannot be read."""

    def examine(self, files: Mapping[str, Regular]) -> Mapping[str, File]:
        """Scan each of these files. One that is not an ELF file has neither `elf` nor `unreadable`."""


def place(tree: FileTree, path: str) -> str | None:
    """Return the path that `path` means, with no link in it; None if nothing is there, or links run in circles."""

    def look(directory: str, name: str, is_last: bool) -> str | SymbolicLink:
        node = tree.look(child := join(directory, name))
        if isinstance(node, SymbolicLink):
            return node
        if node is None or not (is_last or isinstance(node, Directory)) or len(child) > PATH_MAX:
            raise ValueError(child)
        return child

    try:
        return follow_links(path, "/", look)[-1]
    except ValueError:
        return None


def file_at(tree: FileTree, path: str) -> tuple[str, Regular] | None:
    """Return the file that `path` means, with the path without links; None if there is no file."""
    real = place(tree, path)
    node = tree.look(real) if real else None
    return (real, node) if real and isinstance(node, Regular) else None


def read_file(tree: FileTree, path: str, limit: int) -> bytes | None:
    """Return the contents of the file that `path` means; None if it is missing, or longer than `limit` bytes."""
    real = place(tree, path)
    return tree.read(real, limit) if real else None


def walk(tree: FileTree, top: str) -> Iterator[tuple[str, Node]]:
    """Everything below `top` but its directories, in no order; links are not followed, and `top` leads through none."""
    waiting = [(top, 0)]
    while waiting:
        directory, depth = waiting.pop()
        inside = join(directory, "")
        for name, node in tree.entries(directory):
            path = inside + name
            if not isinstance(node, Directory):
                yield path, node
            elif depth < _MAX_DEPTH:
                waiting.append((path, depth + 1))


def join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
