"""The file tree of an image: its layers applied, and the sha256 of each file.

Source: OCI image-spec v1.1, layer.md (changesets, whiteouts).
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, cast

import zstandard

from imagegen.core.errors import StoreError
from imagegen.core.oci.layout import DAMAGED, Bounded, members
from imagegen.core.store import Store
from imagegen.image.layers import Image, Layer

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
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

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are not empty."""
        return {name: value for name, value in asdict(self).items() if value != "" and (name != "size" or self.sha256)}


@dataclass(frozen=True)
class RootFiles:
    """The root file system of an image.

    `entries` are sorted so that directories come before their contents. `origins` names, for each sha256 in an order
    of the layers, the layer's index and the path in it where a file has that content.
    """

    entries: tuple[Entry, ...]
    origins: Mapping[str, tuple[int, str]]


def read_tree(image: Image, store: Store) -> RootFiles:
    """Read the image's layers.

    Raises StoreError for a layer that is absent or damaged, or that holds what no exported tree can (devices, pipes,
    files below symbolic links).
    """
    tree: dict[str, Entry] = {}
    origins: dict[str, tuple[int, str]] = {}
    for index, layer in enumerate(image.layers):
        added = _apply(layer, store, tree)
        for entry in added:
            if entry.kind == "file":
                origins.setdefault(entry.sha256, (index, entry.path))
    return RootFiles(tuple(tree[path] for path in sorted(tree)), origins)


def contents(layer: Layer, store: Store) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield path and content of each regular file of a layer; a content must be read before the next is requested."""
    with _opened(layer, store) as archive:
        for member in members(archive):
            if member.isreg() and (content := archive.extractfile(member)):
                yield _path(member.name), content


@contextmanager
def _opened(layer: Layer, store: Store) -> Iterator[tarfile.TarFile]:
    try:
        with store.open(layer.digest) as blob:
            if layer.compression == "gzip":
                with tarfile.open(fileobj=cast("IO[bytes]", blob), mode="r|gz", tarinfo=Bounded) as archive:
                    yield archive
            else:
                reader = zstandard.ZstdDecompressor().stream_reader(cast("IO[bytes]", blob), read_across_frames=True)
                with (
                    reader,
                    tarfile.open(
                        fileobj=cast("IO[bytes]", reader), mode="r|", bufsize=_BUFFER, tarinfo=Bounded
                    ) as archive,
                ):
                    yield archive
    except (*DAMAGED, zstandard.ZstdError) as error:
        raise StoreError(
            f"layer {layer.name} cannot be read", code="store-layer-unreadable", where=layer.digest, why=str(error)
        ) from error


def _apply(layer: Layer, store: Store, tree: dict[str, Entry]) -> Iterable[Entry]:
    """Apply a layer's changeset to `tree`; returns the layer's own entries, without hard links.

    Whiteouts are about lower layers, wherever they stand in theirs.
    """
    added: dict[str, Entry] = {}
    linked: set[str] = set()
    removed: list[str] = []
    with _opened(layer, store) as archive:
        for member in members(archive):
            path = _path(member.name)
            name = path.rpartition("/")[2]
            if name.startswith(_WHITEOUT):
                removed.append(path)
            elif path:
                added[path] = _linked(path, member, tree | added) if member.islnk() else _entry(path, member, archive)
                if member.islnk():
                    linked.add(path)
    for path in removed:
        folder, _, name = path.rpartition("/")
        _remove(
            tree, folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}".strip("/"), name == _OPAQUE
        )
    for path, entry in added.items():
        before = tree.get(path)
        if before and before.kind == "directory" and entry.kind != "directory":
            _remove(tree, path, contents_only=True)
        tree[path] = entry
    for path in added:
        folder = path.rpartition("/")[0]
        if folder and (folder not in tree or tree[folder].kind != "directory"):
            why = f"{folder} is no directory of the image"
            raise StoreError(
                f"{path} cannot be exported", code="store-unsupported-file", where=f"layer {layer.name}", why=why
            )
    return [entry for path, entry in added.items() if path not in linked]


def _linked(path: str, member: tarfile.TarInfo, known: Mapping[str, Entry]) -> Entry:
    target = known.get(_path(member.linkname))
    if target is None or target.kind != "file":
        raise StoreError(
            f"{path} cannot be exported",
            code="store-unsupported-file",
            why=f"it is a hard link to {member.linkname}, which is no file",
        )
    return replace(target, path=path)


def _entry(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Entry:
    entry = Entry(path, "directory", member.mode, member.uid, member.gid, int(member.mtime))
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


def _remove(tree: dict[str, Entry], path: str, contents_only: bool) -> None:
    for each in [each for each in tree if each.startswith(f"{path}/") or (each == path and not contents_only)]:
        del tree[each]


def _path(name: str) -> str:
    return name.removeprefix("./").strip("/")
