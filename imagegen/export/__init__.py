"""The file tree of an image: its layers applied, and the sha256 of each file.

Source: OCI image-spec v1.1, layer.md (changesets, whiteouts).
"""

from __future__ import annotations

import gzip
import hashlib
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import IO, BinaryIO, TypeAlias, cast

import zstandard

from imagegen.core.errors import StoreError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.core.layer_tree import MemberKind, MergedTree, is_whiteout, kind_of
from imagegen.core.store import Store
from imagegen.image.base.unpack import decompressed
from imagegen.image.layers import Image, Layer

_BUFFER = 1 << 20
_Member: TypeAlias = "tuple[Entry, tuple[int, int]]"  # a member of a layer, and its origin as in RootFiles


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
    tree = MergedTree[_Member]()
    allowance = Allowance()
    for index, layer in enumerate(image.layers):
        apply_layer(layer, index, store, tree, allowance)
    entries: list[Entry] = []
    origins: dict[str, tuple[int, int]] = {}
    for path, node in sorted(tree.walk(), key=itemgetter(0)):
        if node.entry:
            entry, origin = node.entry
            entries.append(replace(entry, path=path))
            if entry.kind == "file":
                origins[path] = origin
    return RootFiles(tuple(entries), origins)


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


def apply_layer(layer: Layer, index: int, store: Store, tree: MergedTree[_Member], allowance: Allowance) -> None:
    """Apply a layer's changeset to `tree`."""
    tree.begin_layer()
    added: list[str] = []
    with _opened(layer, store) as archive:
        for number, member in enumerate(members(archive)):
            path, kind = member.name, kind_of(member)
            if not allowance.take(member.size, path, member.linkname):
                raise StoreError(
                    f"layer {layer.name} cannot be read", code="store-layer-unreadable", where=path, why="a bomb"
                )
            content: _Member | None = None
            if path and not is_whiteout(path):
                added.append(path)
                if kind is MemberKind.HARD_LINK:
                    target = tree.at(member.linkname)
                    if target is None or target.entry is None or target.entry[0].kind != "file":
                        raise _unsupported(path, f"it is a hard link to {member.linkname}, which is not a file")
                else:
                    content = (_entry(member, archive), (index, number))
            tree.add(path, kind, content, member.linkname)
    for path in added:
        directory = path.rpartition("/")[0]
        node = tree.at(directory)
        if directory and (node is None or node.children is None or node.entry is None):
            raise _unsupported(path, f"{directory} is not a directory of the image", f"layer {layer.name}")


def _entry(member: tarfile.TarInfo, archive: tarfile.TarFile) -> Entry:
    entry = Entry(member.name, "directory", stat.S_IMODE(member.mode), member.uid, member.gid, int(member.mtime))
    if member.isdir():
        return entry
    if member.issym():
        return replace(entry, kind="symlink", target=member.linkname)
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise _unsupported(member.name, "it is neither a file nor a directory nor a link")
    digest = hashlib.sha256()
    while chunk := content.read(_BUFFER):
        digest.update(chunk)
    return replace(entry, kind="file", size=member.size, sha256=digest.hexdigest())


def _unsupported(path: str, why: str, where: str | None = None) -> StoreError:
    return StoreError(f"{path} cannot be exported", code="store-unsupported-file", where=where, why=why)
