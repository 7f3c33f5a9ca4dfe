"""A file tree as a process sees it that has the tree as its root: a directory here, or the layers of an image.

Links mean what they mean inside: an absolute one begins at the tree's root, and `..` ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from imagegen.audit.model import File

MAX_LINKS = 40  # as Linux follows at most
_MAX_DEPTH = 64  # directories below the one that is walked: environments have a dozen
_MAX_PATH = 4096  # characters, Linux's PATH_MAX


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link."""

    target: str


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
    """Paths are absolute in the tree and lead through no link: see `place`. What is no file, link or directory is not
    there. Nothing here raises for what cannot be read: that is a file which is unreadable, or nothing.
    """

    def look(self, path: str) -> Node | None:
        """Return the node at a path; for a link, the link itself."""

    def entries(self, path: str) -> Iterable[tuple[str, Node]]:
        """Names and nodes in a directory, in no order."""

    def read(self, path: str, limit: int) -> bytes | None:
        """A whole file of text; None where it is longer than `limit` bytes, or cannot be read."""

    def examine(self, files: Mapping[str, Regular]) -> Mapping[str, File]:
        """Scan each of these files. One that is no ELF file has neither `elf` nor `unreadable`."""


def place(tree: FileTree, path: str, *, follow_last: bool = True) -> str | None:
    """The path that `path` means, with no link in it; None where nothing is there, or links run in circles."""
    parts = steps(path)
    found, followed = "/", 0
    while parts:
        part = parts.pop()
        if part == "..":
            found = parent(found)
            continue
        node = tree.look(path := join(found, part))
        if isinstance(node, SymbolicLink) and (parts or follow_last):
            followed += 1
            if followed > MAX_LINKS:
                return None
            found = "/" if node.target.startswith("/") else found
            parts += steps(node.target)
        elif node is None or (parts and not isinstance(node, Directory)) or len(path) > _MAX_PATH:
            return None
        else:
            found = path
    return found


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


def steps(path: str) -> list[str]:
    """The names on the way, the last one first; of a path longer than any can be, its beginning."""
    return [part for part in reversed(path[: _MAX_PATH + 1].split("/")) if part not in ("", ".")]
