"""File trees that are audited: a directory of this machine, and the layers of an image put together.

Python's threads take turns, and each call of the kernel is one: 18,000 files that are in the page cache took eight
threads 1.7 s of the processor's and one thread 1.1 s (2026-11-21). A second process for half of them cost more than it
gave. So files in the page cache are examined one after the other, the others while many are waited for.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from imagegen.audit.collect import Collector
from imagegen.audit.examine import HEAD, concerns, examine
from imagegen.audit.model import File
from imagegen.audit.window import OnDisk
from imagegen.core import layer_tree
from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.core.layer_tree import DanglingLinkError, MemberKind, MergedTree, SymbolicLink, is_whiteout, kind_of
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


# The layers of an image as one file tree. Nothing is unpacked: a layer is read once, from its first byte to its last.
#
# Kept are the scans of files for an audit, and the text of the few files that affect how others are found. Layers are
# untrusted input: time and memory are bounded. Source: OCI image-spec v1.1, layer.md (whiteouts).

_MAX_TEXT = 16 << 20  # bytes of one file
# Bytes. A larger file is scanned without its GPU code, since a stream cannot be read again. Only CUDA's libraries are
# larger, and their scans need none. Triton, with 440 MB, needed its own (measured 2026-11-21).
_WHOLE = 512 << 20
_BUFFER = 1 << 16  # bytes; tarfile copies the rest of the buffer for each header
_BLOCK = 1 << 20
_MAX_CREATED = 300_000  # directories that have no member of their own
_MAX_FOLLOWED = 100_000_000  # names in targets of links
# How libraries are found, and what an environment and a distribution say of themselves.
_TEXT = re.compile(
    r"etc/ld\.so\.conf|etc/(.*/)?[^/]*\.conf|(etc|usr/lib)/os-release|var/lib/(dpkg/status|apt/extended_states)|(.*/)?pyvenv\.cfg|.*\.pth|.*\.egg-link|.*\.egg-info"
    r"|.*\.(dist-info|egg-info)/(METADATA|PKG-INFO|WHEEL|RECORD|INSTALLER|direct_url\.json|installed-files\.txt)"
)


class Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """A file. `text` is kept of those that are read."""

    file: File
    text: bytes | None = None


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
    with Collector(member.size, scratch, whole=member.size <= _WHOLE) as collector:
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
            _require(tree.created <= _MAX_CREATED and tree.followed <= _MAX_FOLLOWED, entry.path)

    def look(self, path: str) -> Node | None:
        return _node(self._tree.at(path))

    def entries(self, path: str) -> Iterator[tuple[str, Node]]:
        directory = self._tree.at(path)
        for name, child in ((directory and directory.children) or {}).items():
            if node := _node(child):
                yield name, node

    def read(self, path: str, limit: int) -> bytes | None:
        text = leaf.text if (leaf := self._leaf(path)) else None
        return text if text is not None and len(text) <= limit else None

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


# A directory of this machine as a file tree.

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
