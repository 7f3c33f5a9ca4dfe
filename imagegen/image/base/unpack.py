"""Unpack the layers of an image, which are hostile, into a directory: nothing is ever written outside it.

`core.layer_tree` says what each member does.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from imagegen.core import data
from imagegen.core.errors import BaseError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members, most_unpacked
from imagegen.core.layer_tree import MergedTree, SymbolicLink, TreeChange, follow_links, kind_of
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.oci.documents import LayerDescriptor

_MAX_IDS = (1 << 32) - 1  # the last number does not stand for a user or group
_CHUNK = 1 << 20
# The errors of a file system for impossible names and kinds; all others are its own.
ODD = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.EEXIST, errno.ENOENT}
_VERIFIED = Cache("diff-id", dict[str, str])


def unpack(layers: Iterable[LayerDescriptor], store: Store, root: Path, *, first_id: int | None = None) -> None:
    """Unpack the layers, all in the store, into the empty directory `root`, from the bottom up.

    Files belong to the caller, and none is set-user-id; with `first_id`, which takes root's capabilities, they have the
    modes and owners of the layers, counted from that id. Devices are left out. Raises BaseError for invalid members,
    and for a layer that does not match the image's config; StoreError.
    """
    tree = UnpackTarget(root, first_id)
    for layer in layers:
        with _unpacking(layer, store) as stream:
            tree.begin_layer()
            source = cast("BinaryIO", stream)
            with tarfile.open(fileobj=source, mode="r|", errorlevel=2, tarinfo=Bounded) as archive:
                for member in members(archive):
                    try:
                        tree.add(member, archive)
                    except (OSError, ValueError) as error:
                        if isinstance(error, OSError) and error.errno not in ODD:
                            raise
                        where = f"{layer.digest}: {member.name[:200]}"
                        why = getattr(error, "strerror", str(error))
                        raise BaseError(
                            "a layer cannot be unpacked", code="base-layer-invalid", where=where, why=why
                        ) from error


def verify(layer: LayerDescriptor, store: Store) -> None:
    """Raise BaseError unless the layer, in the store, unpacks to the diff_id in its image's config."""
    if not verified(layer, store):
        with _unpacking(layer, store):
            pass


def verified(layer: LayerDescriptor, store: Store) -> bool:
    """Return whether this store has verified before that the layer unpacks to the diff_id in its image's config."""
    return _VERIFIED.get(store, layer.digest) == {"diff_id": layer.diff_id}


def inside(root: Path, path: str) -> Path:
    """Return the location of `path`, absolute in the tree, with links followed inside the tree.

    Raises BaseError for links in circles, and for a path that is too deep.
    """

    def look(directory: Path, name: str, _is_last: bool) -> Path | SymbolicLink:
        location = directory / name
        return SymbolicLink(os.readlink(location)) if location.is_symlink() else location

    try:
        return follow_links(path, root, look)[-1]
    except ValueError as error:
        raise BaseError(
            "a path cannot be followed", code="base-layer-invalid", where=path[:200], why=str(error)
        ) from error


def read_inside(root: Path, path: str, longest: int) -> bytes:
    """Return the contents of the regular file at `path`, absolute in the tree, links followed as inside it.

    Raises BaseError if there is no such file, or it has more than `longest` bytes.
    """
    try:
        return data.read(inside(root, path), longest=longest)
    except OSError as error:
        where, why = f"/{path.lstrip('/')}", error.strerror
        raise BaseError(
            "a file of the base cannot be read", code="base-file-unreadable", where=where, why=why
        ) from error


@contextmanager
def _unpacking(layer: LayerDescriptor, store: Store) -> Iterator[_Hashed]:
    """Yield the layer's tar; at the end verify both of its digests and record that."""
    try:
        with store.open(layer.digest) as blob:
            stream = _Hashed(decompressed(cast("BinaryIO", blob), layer.compression), most_unpacked(layer.size))
            yield stream
            while stream.read(_CHUNK):
                pass
            for _ in blob:  # the store verifies it at its end
                pass
    except (*DAMAGED, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise BaseError(
            "a layer cannot be unpacked", code="base-layer-invalid", where=layer.digest, why=str(error)
        ) from error
    if (diff_id := f"sha256:{stream.hash.hexdigest()}") != layer.diff_id:
        why = f"expected diff_id {layer.diff_id}, got {diff_id}"
        raise BaseError(
            "a layer differs from its image's config", code="base-layer-differs", where=layer.digest, why=why
        )
    _VERIFIED.put(store, layer.digest, {"diff_id": layer.diff_id})


class _Hashed:
    """A stream that hashes the bytes read from it. Raises BaseError after more bytes than any layer has."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._most = stream, most
        self.hash = hashlib.sha256()
        self._read = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self.hash.update(data)
        self._read += len(data)
        if self._read > self._most:
            raise BaseError("a layer unpacks to more than any layer holds", code="base-layer-too-large", why="a bomb")
        return data


def decompressed(blob: BinaryIO, kind: str) -> Any:
    """Return the stream of a layer's tar; `kind` is its compression: "gzip", "zstd" or ""."""
    if kind == "gzip":
        return gzip.GzipFile(fileobj=blob)
    if kind == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True)
    return blob


class UnpackTarget:
    """An empty directory of this machine, to which members of archives are added as a file tree."""

    def __init__(self, root: Path, first_id: int | None = None) -> None:
        self._root, self._first_id = root, first_id
        self._allowance = Allowance()
        self._tree = MergedTree[None]()

    def begin_layer(self) -> None:
        self._tree.begin_layer()

    def add(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Add a member of the current layer. Raises BaseError, ValueError, OSError for an invalid one."""
        self._count(member.name, member.size)
        change = self._tree.add(member.name, kind_of(member), None, member.linkname)
        for path in change.removed:
            old = self._root / path
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            else:
                old.unlink()
        for path in change.created:
            self._count(path)
            (self._root / path).mkdir()
            self._give(self._root / path, 0, 0)
        if change.path:
            self._put(member, archive, change)

    def _count(self, path: str, size: int = 0) -> None:
        """Count a member with `size` bytes, or a directory that a member's path implies."""
        if not self._allowance.take(size):
            raise BaseError(
                "the image unpacks to more than any image holds", code="base-layer-too-large", where=path, why="a bomb"
            )

    def _put(self, member: tarfile.TarInfo, archive: tarfile.TarFile, change: TreeChange) -> None:
        """Write a member at a path without links, which is free, or a directory that it is merged with."""
        path = self._root / change.path
        if change.source:
            os.link(self._root / change.source, path, follow_symlinks=False)
        elif member.issym():
            path.symlink_to(member.linkname)
            self._give(path, member.uid, member.gid)
        elif member.isdir():
            if not change.is_merged:
                path.mkdir()
            self._set_mode(path, member, 0o700)
        else:
            content = archive.extractfile(member)
            assert content is not None  # noqa: S101 - a regular file has one
            with path.open("xb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
            self._set_mode(path, member, 0o600)

    def _set_mode(self, path: Path, member: tarfile.TarInfo, least: int) -> None:
        """Set the mode of a file or directory; `least` are the minimum permissions of its owner."""
        if self._first_id is None:
            path.chmod(stat.S_IMODE(member.mode) & 0o755 | least)
        else:
            self._give(path, member.uid, member.gid)  # which takes set-user-id away
            path.chmod(stat.S_IMODE(member.mode))

    def _give(self, path: Path, uid: int, gid: int) -> None:
        if self._first_id is None:
            return
        if not all(0 <= number < _MAX_IDS - self._first_id for number in (uid, gid)):
            raise BaseError("no user has such a number", code="base-layer-invalid", where=path.name, why=f"{uid}:{gid}")
        os.lchown(path, self._first_id + uid, self._first_id + gid)
