"""The layers of an image as one file tree. Nothing is unpacked: a layer is read once, from its first byte to its last.

Kept are the scans of files for an audit, and the text of the few files that affect how others are found. Layers are
untrusted input: time and memory are bounded. Source: OCI image-spec v1.1, layer.md (whiteouts).
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from imagegen.audit.api.source import LONGEST
from imagegen.audit.collect import Collector
from imagegen.audit.model import File
from imagegen.core import layer_tree
from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.core.layer_tree import DanglingLinkError, MemberKind, MergedTree, SymbolicLink, is_whiteout, kind_of
from imagegen.image.inventory.tree import Directory, Node, Regular

_MAX_TEXT = 16 << 20  # bytes of one file
# Bytes. A larger file is scanned without its GPU code, since a stream cannot be read again. Only CUDA's libraries are
# larger, and their scans need none. Triton, with 440 MB, needed its own (measured 2026-11-21).
READ_WHOLE = 512 << 20
_BUFFER = 1 << 16  # bytes; tarfile copies the rest of the buffer for each header
_BLOCK = 1 << 20
MAX_CREATED = 300_000  # directories that have no member of their own
MAX_FOLLOWED = 100_000_000  # names in targets of links
# How libraries are found, and what an environment and a distribution say of themselves.
_TEXT = re.compile(
    r"etc/ld\.so\.conf|etc/(.*/)?[^/]*\.conf|(etc|usr/lib)/os-release|var/lib/(dpkg/status|apt/extended_states)|(.*/)?pyvenv\.cfg|.*\.pth|.*\.egg-link|.*\.egg-info"
    r"|.*\.(dist-info|egg-info)/(METADATA|PKG-INFO|WHEEL|RECORD|INSTALLER|direct_url\.json|installed-files\.txt)"
)


class Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """A file. `text` is kept of those that are read; of a Python source it is compressed."""

    file: File
    text: bytes | None = None
    is_source: bool = False


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """A member of a layer; `kind` is None for a device or pipe, `target` is a link's."""

    path: str
    kind: MemberKind | None
    leaf: Leaf | None  # of a file
    target: str


def read_layer(stream: Stream, scratch: Path, allowance: Allowance) -> list[LayerEntry]:
    """Return the entries of a layer's uncompressed tar, in its order.

    `scratch` is a directory on a disk with enough space for one large library; `allowance` is for all layers of the
    image. Raises FetchError for a malformed layer, and for one that takes more than is left of the allowance.
    """
    entries: list[LayerEntry] = []
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
            for member in members(archive):
                _require(allowance.take(member.size, member.name, member.linkname), member.name)
                leaf = _read_file(member, archive, scratch) if member.isreg() and not is_whiteout(member.name) else None
                entries.append(LayerEntry(member.name, kind_of(member), leaf, member.linkname))
                _require(leaf is None or allowance.take(0, leaf.text or b"", members=0), member.name)
    except DAMAGED as error:
        raise FetchError("a layer cannot be read", code="fetch-layer-invalid", why=str(error)) from error
    return entries


def _require(fits: bool, path: str) -> None:
    if not fits:
        raise FetchError(
            "a layer holds more than any layer holds", code="fetch-layer-too-large", where=path[:200], why="a bomb"
        )


def _read_file(member: tarfile.TarInfo, archive: tarfile.TarFile, scratch: Path) -> Leaf:
    content = cast("IO[bytes]", archive.extractfile(member))
    executable = bool(member.mode & 0o111)
    if member.size <= _MAX_TEXT and _TEXT.fullmatch(member.name):
        return Leaf(File(member.size, executable=executable), content.read())
    if member.size <= LONGEST and member.name.endswith(".py"):
        return Leaf(File(member.size, executable=executable), zlib.compress(content.read(), 1), is_source=True)
    with Collector(member.size, scratch, whole=member.size <= READ_WHOLE) as collector:
        while not collector.idle and (chunk := content.read(_BLOCK)):
            collector.write(chunk)
        return Leaf(collector.finish(executable=executable))


class LayeredTree:
    """The `FileTree` of layers, which are added from the bottom up."""

    def __init__(self) -> None:
        self._tree = MergedTree[Leaf]()

    def add(self, layer: Iterable[LayerEntry]) -> None:
        """Put a layer over the others. Raises FetchError for paths that take too long to follow, or run in circles."""
        tree = self._tree
        tree.begin_layer()
        for entry in layer:
            try:
                tree.add(entry.path, entry.kind, entry.leaf, entry.target)
            except DanglingLinkError:
                tree.add(entry.path, MemberKind.FILE, Leaf(File(0, unreadable="a link to nothing")))
            except ValueError as error:
                raise FetchError("a layer cannot be read", code="fetch-layer-invalid", why=str(error)) from error
            _require(tree.created <= MAX_CREATED and tree.followed <= MAX_FOLLOWED, entry.path)

    def look(self, path: str) -> Node | None:
        return _node(self._tree.at(path))

    def entries(self, path: str) -> Iterator[tuple[str, Node]]:
        directory = self._tree.at(path)
        for name, child in ((directory and directory.children) or {}).items():
            if node := _node(child):
                yield name, node

    def read(self, path: str, limit: int) -> bytes | None:
        leaf = self._leaf(path)
        if leaf is None or leaf.text is None or leaf.file.size > limit:
            return None
        return zlib.decompress(leaf.text) if leaf.is_source else leaf.text

    def examine(self, files: Mapping[str, Regular]) -> Mapping[str, File]:
        return {path: leaf.file for path in files if (leaf := self._leaf(path))}

    def _leaf(self, path: str) -> Leaf | None:
        node = self._tree.at(path)
        return node.entry if node else None


def _node(node: layer_tree.Node[Leaf] | None) -> Node | None:
    if node is None:
        return None
    if node.target is not None:
        return SymbolicLink(node.target)
    return Regular(node.entry.file.size, node.entry.file.executable) if node.entry else Directory()
