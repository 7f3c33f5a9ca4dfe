"""The file tree of an image: its layers applied, and the sha256 of each file.

Source: OCI image-spec v1.1, layer.md (changesets, whiteouts).
"""

from __future__ import annotations

import gzip
import hashlib
import stat
import tarfile
import zlib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, BinaryIO, cast

import zstandard

from imagegen.core.errors import StoreError
from imagegen.core.layer_tar import DAMAGED, OPAQUE, WHITEOUT, Allowance, Bounded, members
from imagegen.core.store import Store
from imagegen.image.base.image import decompressed
from imagegen.image.layers import Image, Layer

_BUFFER = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A file, directory or symbolic link; `path` is relative to the root, `size` in bytes, `mtime` in Unix seconds.

    `kind` is "file", "directory" or "symlink". A file has `sha256` and `size`, a symbolic link `target`.
    """

    path: str
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    sha256: str = ""
    target: str = ""


@dataclass(frozen=True)
class RootFiles:
    """The root file system of an image.

    `entries` are sorted so that directories come before their contents. `origins` names the layer's index and the
    number of the member in it that have a file's content, for each file; a hard link has the origin of its file.
    """

    entries: tuple[Entry, ...]
    origins: Mapping[str, tuple[int, int]]


def read_tree(image: Image, store: Store) -> RootFiles:
    """Read the image's layers.

    Raises StoreError for a layer that is absent or damaged, or that has entries that no exported tree can have
    (devices, pipes, files below symbolic links, names that leave the tree).
    """
    tree: dict[str, Entry] = {}
    origins: dict[str, tuple[int, int]] = {}
    allowance = Allowance()
    for index, layer in enumerate(image.layers):
        _apply(layer, index, store, tree, origins, allowance)
    entries = tuple(tree[path] for path in sorted(tree))
    return RootFiles(entries, {entry.path: origins[entry.path] for entry in entries if entry.kind == "file"})


def contents(layer: Layer, store: Store) -> Iterator[tuple[int, IO[bytes]]]:
    """Yield number and content of each regular file of a layer; a content must be read before the next is requested."""
    with _opened(layer, store) as archive:
        for number, member in enumerate(members(archive)):
            if member.isreg() and (content := archive.extractfile(member)):
                yield number, content


@contextmanager
def _opened(layer: Layer, store: Store) -> Iterator[tarfile.TarFile]:
    try:
        with store.open(layer.digest) as blob:
            stream = decompressed(cast("BinaryIO", blob), layer.compression)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
                yield archive
    except (*DAMAGED, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise StoreError(
            f"layer {layer.name} cannot be read", code="store-layer-unreadable", where=layer.digest, why=str(error)
        ) from error


def _apply(
    layer: Layer,
    index: int,
    store: Store,
    tree: dict[str, Entry],
    origins: dict[str, tuple[int, int]],
    allowance: Allowance,
) -> None:
    """Apply a layer's changeset to `tree`, and name the origin of each file that it adds in `origins`.

    Whiteouts are about lower layers, wherever they stand in theirs.
    """
    added: dict[str, Entry] = {}
    removed: set[str] = set()
    emptied: set[str] = set()
    with _opened(layer, store) as archive:
        for number, member in enumerate(members(archive)):
            path = member.name
            if not allowance.take(member.size, path, member.linkname):
                raise StoreError(
                    f"layer {layer.name} cannot be read", code="store-layer-unreadable", where=path, why="a bomb"
                )
            folder, _, name = path.rpartition("/")
            if name == OPAQUE:
                emptied.add(folder)
            elif name.startswith(WHITEOUT):
                removed.add(f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
            elif path:
                merged = ChainMap(added, tree)
                added[path] = _linked(path, member, merged) if member.islnk() else _entry(path, member, archive)
                if added[path].kind == "file":
                    origins[path] = origins[member.linkname] if member.islnk() else (index, number)
    emptied |= {path for path, entry in added.items() if entry.kind != "directory" and _is_directory(path, tree)}
    if gone := removed | emptied:
        for path in [path for path in tree if path in removed or not gone.isdisjoint(_parents(path))]:
            del tree[path]
    tree |= added
    _require_directories(added, tree, layer)


def _require_directories(paths: Iterable[str], tree: Mapping[str, Entry], layer: Layer) -> None:
    for path in paths:
        folder = path.rpartition("/")[0]
        if folder and not _is_directory(folder, tree):
            why = f"{folder} is not a directory of the image"
            raise StoreError(
                f"{path} cannot be exported", code="store-unsupported-file", where=f"layer {layer.name}", why=why
            )


def _is_directory(path: str, tree: Mapping[str, Entry]) -> bool:
    return path in tree and tree[path].kind == "directory"


def _parents(path: str) -> Iterator[str]:
    """Yield the paths of the directories above, "" for the root."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _linked(path: str, member: tarfile.TarInfo, entries: Mapping[str, Entry]) -> Entry:
    target = entries.get(member.linkname)
    if target is None or target.kind != "file":
        raise StoreError(
            f"{path} cannot be exported",
            code="store-unsupported-file",
            why=f"it is a hard link to {member.linkname}, which is not a file",
        )
    return replace(target, path=path)


def _entry(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Entry:
    entry = Entry(path, "directory", stat.S_IMODE(member.mode), member.uid, member.gid, int(member.mtime))
    if member.isdir():
        return entry
    if member.issym():
        return replace(entry, kind="symlink", target=member.linkname)
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise StoreError(
            f"{path} cannot be exported",
            code="store-unsupported-file",
            why="it is neither a file nor a directory nor a link",
        )
    digest = hashlib.sha256()
    while chunk := content.read(_BUFFER):
        digest.update(chunk)
    return replace(entry, kind="file", size=member.size, sha256=digest.hexdigest())
