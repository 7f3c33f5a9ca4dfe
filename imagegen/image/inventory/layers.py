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
from typing import IO, Protocol, TypeAlias, cast

from imagegen.audit.collect import Collector
from imagegen.audit.examine import HEAD, concerns, examine
from imagegen.audit.model import File
from imagegen.audit.window import OnDisk
from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import DAMAGED, OPAQUE, WHITEOUT, Allowance, Bounded, members
from imagegen.image.inventory.tree import MAX_LINKS, Directory, Node, Regular, SymbolicLink, parent, place, steps

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
# Bytes. Of larger files a copy without their GPU code has to do, since a stream cannot be read again where it does not:
# those are CUDA's libraries, for which it does. It did not for the 440 MB of Triton (measured 2026-11-21).
_WHOLE = 512 << 20
_BUFFER = 1 << 16  # bytes: tarfile copies what is left of it for each header
_BLOCK = 1 << 20
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
class Hard:
    """A further name of a file."""

    target: str


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One path of a layer, as the tar has it."""

    path: str
    what: SymbolicLink | Directory | Leaf | Hard


def read_layer(stream: Stream, scratch: Path, allowance: Allowance) -> list[LayerEntry]:
    """Return the entries of a layer's uncompressed tar, in its order.

    `scratch` is a directory on a disk with enough space for one large library; `allowance` is for all layers of the
    image. Raises FetchError for a malformed layer, and for one that takes more than is left of the allowance.
    """
    entries: list[LayerEntry] = []
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
            for member in members(archive):
                fits = allowance.take(member.size, member.name, member.linkname)
                if fits and (content := _what(member, archive, scratch)):
                    entries.append(LayerEntry(member.name, content))
                    fits = not isinstance(content, Leaf) or allowance.take(0, content.text or b"", members=0)
                _require(fits, member.name)
    except DAMAGED as error:
        raise FetchError("a layer cannot be read", code="fetch-layer-invalid", why=str(error)) from error
    return entries


def _require(fits: bool, path: str) -> None:
    if not fits:
        raise FetchError(
            "a layer holds more than any layer holds", code="fetch-layer-too-large", where=path[:200], why="a bomb"
        )


def _what(
    member: tarfile.TarInfo, archive: tarfile.TarFile, scratch: Path
) -> SymbolicLink | Directory | Leaf | Hard | None:
    if member.issym():
        return SymbolicLink(member.linkname)
    if member.isdir():
        return Directory()
    if member.islnk():
        return Hard(member.linkname)
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        return None  # devices and pipes
    executable = bool(member.mode & 0o111)
    if member.size <= _MAX_TEXT and _TEXT.fullmatch(member.name):
        return Leaf(File(member.size, executable=executable), content.read())
    with Collector(member.size, scratch, whole=member.size <= _WHOLE) as collector:
        while not collector.idle and (chunk := content.read(_BLOCK)):
            collector.write(chunk)
        return Leaf(collector.finish(executable=executable))


_Folder: TypeAlias = "dict[str, _Folder | SymbolicLink | Leaf]"


class LayeredTree:
    """See `Tree`. Layers are added from the bottom up."""

    def __init__(self) -> None:
        self._root: _Folder = {}
        self._made = Allowance(members=300_000)  # directories that have no entry of their own
        self._followed = Allowance(members=100_000_000)  # names in targets of links

    def add(self, layer: Iterable[LayerEntry]) -> None:
        """Put a layer over what is there."""
        above = []
        for entry in layer:
            name = entry.path.rpartition("/")[2]
            if name.startswith(WHITEOUT):
                self._white_out(parent(entry.path), name)
            elif name:
                above.append(entry)
        for entry in above:  # whiteouts are about the layers below, wherever they stand in theirs
            self._put(entry)

    def look(self, path: str) -> Node | None:
        return _node(self._at(path))

    def entries(self, path: str) -> Iterator[tuple[str, Node]]:
        folder = self._at(path)
        for name, leaf in folder.items() if isinstance(folder, dict) else ():
            if node := _node(leaf):
                yield name, node

    def read(self, path: str, limit: int) -> bytes | None:
        leaf = self._at(path)
        text = leaf.text if isinstance(leaf, Leaf) else None
        return text if text is not None and len(text) <= limit else None

    def examine(self, files: Mapping[str, Regular]) -> Mapping[str, File]:
        return {path: leaf.file for path in files if isinstance(leaf := self._at(path), Leaf)}

    def _at(self, path: str) -> _Folder | SymbolicLink | Leaf | None:
        node: _Folder | SymbolicLink | Leaf | None = self._root
        for name in reversed(steps(path)):
            if not isinstance(node, dict):
                return None
            node = node.get(name)
        return node

    def _white_out(self, directory: str, name: str) -> None:
        real = place(self, directory)
        folder = self._at(real) if real else None
        if not isinstance(folder, dict):
            return
        if name == OPAQUE:
            folder.clear()
        else:
            folder.pop(name.removeprefix(WHITEOUT), None)

    def _put(self, entry: LayerEntry) -> None:
        folder, name = self._directory(parent(entry.path)), entry.path.rpartition("/")[2]
        if isinstance(entry.what, Directory):
            if not isinstance(folder.get(name), dict):
                folder[name] = {}
        elif isinstance(entry.what, Hard):
            real = place(self, entry.what.target, follow_last=False)
            target_node = self._at(real) if real else None
            folder[name] = (
                target_node
                if isinstance(target_node, Leaf | SymbolicLink)
                else Leaf(File(0, unreadable="a link to nothing"))
            )
        else:
            folder[name] = entry.what

    def _directory(self, path: str) -> _Folder:
        """The directory that `path` means, made where there is none."""
        way, names, followed = [self._root], steps(path), 0
        while names:
            name = names.pop()
            if name == "..":
                way = way[:-1] or way
                continue
            node = way[-1].get(name)
            if isinstance(node, SymbolicLink) and followed < MAX_LINKS:
                followed += 1
                way = [self._root] if node.target.startswith("/") else way
                names += steps(node.target)
                _require(self._followed.take(0, members=len(names)), node.target)
                continue
            if not isinstance(node, dict):
                _require(self._made.take(0), "/".join(names))
                node = way[-1][name] = {}
            way.append(node)
        return way[-1]


def _node(node: _Folder | SymbolicLink | Leaf | None) -> Node | None:
    if isinstance(node, Leaf):
        return Regular(node.file.size, node.file.executable)
    return Directory() if isinstance(node, dict) else node


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
    """See `Tree`. `root` is what paths begin at."""

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
