"""The file tree of an image: its layers applied one over the other, by the one set of rules that all readers share.

The tree keeps names and the reader's entries, and touches no file. Members are added in the order of their tar, layers
from the bottom up. Source of the rules: OCI image-spec v1.1, layer.md ("Applying Changesets", "Whiteouts").

1. An entry replaces the entry at its path with all that is below it. A directory over a directory replaces only its
   attributes.
2. A whiteout hides entries of lower layers: `.wh.NAME` its sibling NAME, `.wh..wh..opq` all siblings. Entries of its
   own layer stay, whatever their order in the tar.
3. A symbolic link above an entry or whiteout is followed inside the tree: an absolute target begins at the root, and
   `..` ends there. (Engines differ: overlayfs snapshotters of containerd replace the link by a directory.) A directory
   above an entry or whiteout is created if it is missing, and replaces a file.
4. A hard link is one more name of the file, or symbolic link, that its target is when the member is added.
5. Devices and pipes are ignored.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

from imagegen.core.layer_tar import MAX_DEPTH, OPAQUE, PATH_MAX, WHITEOUT

_MAX_LINKS = 40  # as many as Linux follows

Entry = TypeVar("Entry")
Position = TypeVar("Position")


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link."""

    target: str


class MemberKind(Enum):
    FILE = auto()
    DIRECTORY = auto()
    SYMBOLIC_LINK = auto()
    HARD_LINK = auto()


def kind_of(member: tarfile.TarInfo) -> MemberKind | None:
    """Return the kind of a member; None for a device or a pipe."""
    if member.isdir():
        return MemberKind.DIRECTORY
    if member.issym():
        return MemberKind.SYMBOLIC_LINK
    if member.islnk():
        return MemberKind.HARD_LINK
    return MemberKind.FILE if member.isreg() else None


def is_whiteout(path: str) -> bool:
    return path.rpartition("/")[2].startswith(WHITEOUT)


def whiteout_of(path: str) -> str:
    """Return the path of the whiteout that hides `path`."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{WHITEOUT}{name}"


def parents(path: str) -> Iterator[str]:
    """Yield the directories above a path, nearest first, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


def follow_links(
    path: str, root: Position, look: Callable[[Position, str, bool], Position | SymbolicLink]
) -> list[Position]:
    """Return the positions on the way to `path`, from the root, with all symbolic links followed inside the tree.

    `look` takes a position, a name in it, and whether the name is the last one; it returns the position of the name, or
    the link there. Raises ValueError for more links than Linux follows, and for a path that is too deep.
    """
    names, way, followed = _names(path), [root], 0
    while names:
        name = names.pop()
        if name == "..":
            way = way[:-1] or way
            continue
        target = look(way[-1], name, not names)
        if isinstance(target, SymbolicLink):
            followed += 1
            if followed > _MAX_LINKS:
                raise ValueError(f"{path[:200]!r}: links run in circles")
            way = way[:1] if target.target.startswith("/") else way
            names += _names(target.target)
        elif len(way) > MAX_DEPTH:
            raise _too_deep(path)
        else:
            way.append(target)
    return way


def _too_deep(path: str) -> ValueError:
    return ValueError(f"{path[:200]!r}: more than {MAX_DEPTH} folders lie in each other")


def _names(path: str) -> list[str]:
    """Return the names in a path, the last one first; of a path longer than any can be, its beginning."""
    return [name for name in reversed(path[: PATH_MAX + 1].split("/")) if name not in ("", ".")]


@dataclass(slots=True, eq=False)
class Node(Generic[Entry]):
    """A file, directory or symbolic link; `entry` is None for a directory that no layer describes."""

    entry: Entry | None
    layer: int  # the number of the layer that `entry` is from
    children: dict[str, Node[Entry]] | None = None  # of a directory
    target: str | None = None  # of a symbolic link
    changed: int = 0  # the number of the last layer that put this, or something below


_Position: TypeAlias = "tuple[str, Node[Entry] | None]"  # a path without links, and what is there


class TreeChange(NamedTuple):
    """The effect of a member, by paths without links, in the order in which it is applied to files.

    Remove `removed`, create the directories `created`, then put the member at `path`; "": put nothing. `source`
    is the file that a hard link leads to. `is_merged` means that `path` is a directory already.
    """

    path: str = ""
    removed: Sequence[str] = ()
    created: Sequence[str] = ()
    source: str = ""
    is_merged: bool = False


class DanglingLinkError(ValueError):
    """A hard link whose target is not a file or symbolic link."""


class MergedTree(Generic[Entry]):
    """The merged layers of an image.

    `followed` counts the names in the targets of links that were followed, `created` the directories without a member.
    """

    def __init__(self) -> None:
        self._root: Node[Entry] = Node(None, 0, {})
        self._layer = self.followed = self.created = 0
        # The directory of the last member: its path there, and without links. Its way is part of the current layer.
        self._opened: tuple[str | None, str, dict[str, Node[Entry]]] = (None, "", {})

    def begin_layer(self) -> None:
        """Begin the next layer, whose whiteouts hide earlier entries."""
        self._layer += 1
        self._opened = (None, "", {})

    def add(self, path: str, kind: MemberKind | None, entry: Entry | None = None, target: str = "") -> TreeChange:
        """Add a member; `path` and the target of a hard link are as `layer_tar.members` gives them.

        Raises DanglingLinkError, and ValueError for links in circles and for a path that is too deep.
        """
        directory, _, name = path.rpartition("/")
        is_whiteout = name.startswith(WHITEOUT)
        if not name or (kind is None and not is_whiteout):
            return TreeChange()
        source = self._real(target) if kind is MemberKind.HARD_LINK and not is_whiteout else ""
        removed: list[str] = []
        created: list[str] = []
        if directory != self._opened[0]:
            self._opened = (directory, *self._open(directory, removed, created))
        _, real_directory, children = self._opened
        if is_whiteout:
            self._opened = (None, "", {})
            removed += self._white_out(real_directory, children, name)
            return TreeChange("", removed, created)
        real = f"{real_directory}/{name}" if real_directory else name
        previous = children.get(name)
        if previous:
            if kind is MemberKind.DIRECTORY and previous.children is not None:
                previous.entry, previous.layer, previous.changed = entry, self._layer, self._layer
                return TreeChange(real, removed, created, is_merged=True)
            if previous.children is None and source == real:
                return TreeChange("", removed, created)
            if previous.children is not None or previous.target is not None:
                self._opened = (None, "", {})
            del children[name]
            removed.append(real)
        if kind is MemberKind.HARD_LINK:
            file = self.at(source)
            if file is None or file.children is not None:
                raise DanglingLinkError(f"{path[:200]!r} is a hard link to {target[:200]!r}, which leads to no file")
            children[name] = Node(file.entry, self._layer, None, file.target, self._layer)
        else:
            link = target if kind is MemberKind.SYMBOLIC_LINK else None
            children[name] = Node(entry, self._layer, {} if kind is MemberKind.DIRECTORY else None, link, self._layer)
        return TreeChange(real, removed, created, source)

    def at(self, path: str) -> Node[Entry] | None:
        """Return the node at a path that leads through no link; None if there is none."""
        node: Node[Entry] | None = self._root
        for name in reversed(_names(path)):
            node = node.children.get(name) if node and node.children else None
        return node

    def walk(self) -> Iterator[tuple[str, Node[Entry]]]:
        """Yield path and node of everything below the root, in no order."""
        waiting = [("", self._root)]
        while waiting:
            directory, node = waiting.pop()
            below = [(_join(directory, name), child) for name, child in (node.children or {}).items()]
            waiting += below
            yield from below

    def _real(self, path: str) -> str:
        """Return a path with the links above its last name followed."""
        directory, _, name = path.rpartition("/")
        return _join(self._way(directory)[-1][0], name)

    def _way(self, path: str) -> list[_Position[Entry]]:
        """Return path and node of everything on the way to `path`, from the root, with all links followed."""

        def look(position: _Position[Entry], name: str, _is_last: bool) -> _Position[Entry] | SymbolicLink:
            directory, node = position
            child = node.children.get(name) if node and node.children else None
            if child and child.target is not None:
                self.followed += child.target.count("/") + 1
                return SymbolicLink(child.target)
            return _join(directory, name), child

        root: _Position[Entry] = ("", self._root)
        return follow_links(path, root, look)

    def _open(self, path: str, removed: list[str], created: list[str]) -> tuple[str, dict[str, Node[Entry]]]:
        """Create the missing directories of a path; return it without links, and the children of the last directory.

        Add to `removed` and `created` the paths of replaced files and of created directories.
        """
        way = self._way(path)
        if len(way) > MAX_DEPTH:
            raise _too_deep(path)
        children: dict[str, Node[Entry]] = {}
        for real, node in way:
            directory = node
            if directory is None or directory.children is None:
                removed += [real] if directory else []
                created.append(real)
                self.created += 1
                directory = children[real.rpartition("/")[2]] = Node(None, self._layer, {})
            directory.changed = self._layer
            children = cast("dict[str, Node[Entry]]", directory.children)
        return way[-1][0], children

    def _white_out(self, directory: str, children: dict[str, Node[Entry]], name: str) -> Iterator[str]:
        """Apply a whiteout, and yield the paths that it removes; this layer's entries stay."""
        for child in [*children] if name == OPAQUE else [name.removeprefix(WHITEOUT)]:
            node = children.get(child)
            if node and node.changed < self._layer:
                del children[child]
                yield _join(directory, child)
            elif node and node.children:
                node.entry = node.entry if node.layer == self._layer else None
                yield from self._white_out(_join(directory, child), node.children, OPAQUE)


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
