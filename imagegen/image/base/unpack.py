"""The layers of an image, one over the other, as a file tree. They are hostile: nothing is ever written outside.

Source: OCI image-spec v1.1, layer.md (change types, whiteouts). Links mean what they mean inside the tree: an absolute
one begins at its root, and `..` ends there, as for a process that has the tree as its root.
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

from imagegen.core.errors import BaseError
from imagegen.core.oci.layout import DAMAGED, Bounded, members, most_unpacked
from imagegen.core.oci.types import LayerDescriptor
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache

_MAX_ENTRIES = 3_000_000
_MAX_BYTES = 200 << 30  # the largest images of the field unpack to 60 GB
_MAX_LINKS = 40  # as Linux follows at most
_MAX_DEPTH = 200  # folders in folders, ten times what images have: removing them takes a stack frame for each
_CHUNK = 1 << 20
# What a file system says of names and kinds that cannot be; all else is its own trouble.
ODD = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.EEXIST, errno.ENOENT}
_VERIFIED = Cache("diff-id", dict[str, str])
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


def unpack(layers: Iterable[LayerDescriptor], store: Store, root: Path, *, owners: bool = False) -> None:
    """Unpack the layers, all in the store, into the empty directory `root`, from the bottom up.

    Files belong to the caller, and none is set-user-id; with `owners`, which takes root's capabilities, they have the
    owners and modes of the layers. Devices are left out. Raises BaseError for invalid members, and for a layer that
    does not match the image's config; StoreError.
    """
    tree = UnpackTarget(root, owners=owners)
    for layer in layers:
        with _unpacking(layer, store) as stream:
            tree.written.clear()
            source = cast("BinaryIO", stream)
            with tarfile.open(fileobj=source, mode="r|", errorlevel=2, tarinfo=Bounded) as archive:
                for member in members(archive):
                    try:
                        tree.add(member, archive)
                    except OSError as error:
                        if error.errno not in ODD:
                            raise
                        where = f"{layer.digest}: {member.name[:200]}"
                        raise BaseError(
                            "a layer cannot be unpacked", code="base-layer-invalid", where=where, why=error.strerror
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
    """Return where `path`, absolute in the tree, lies: links followed as inside it.

    BaseError where links form a cycle.
    """
    return UnpackTarget(root).place(path, follow_last=True)


@contextmanager
def _unpacking(layer: LayerDescriptor, store: Store) -> Iterator[_Hashed]:
    """Yield the layer's tar; at the end verify both of its digests and record that."""
    try:
        with store.open(layer.digest) as blob:
            stream = _Hashed(_decompressed(cast("BinaryIO", blob), layer.compression), most_unpacked(layer.size))
            yield stream
            while stream.read(_CHUNK):
                pass
            for _ in blob:  # to its end, where it is verified
                pass
    except (*DAMAGED, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise BaseError(
            "a layer cannot be unpacked", code="base-layer-invalid", where=layer.digest, why=str(error)
        ) from error
    if (found := f"sha256:{stream.hash.hexdigest()}") != layer.diff_id:
        why = f"expected diff_id {layer.diff_id}, got {found}"
        raise BaseError("a layer is not what its image says", code="base-layer-differs", where=layer.digest, why=why)
    _VERIFIED.put(store, layer.digest, {"diff_id": layer.diff_id})


class _Hashed:
    """A stream that hashes what is read from it, and ends where more comes than any layer holds."""

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


def _decompressed(blob: BinaryIO, kind: str) -> Any:
    if kind == "gzip":
        return gzip.GzipFile(fileobj=blob)
    if kind == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True)
    return blob


class UnpackTarget:
    """A file tree below a directory of this machine, to which members of archives are added."""

    def __init__(self, root: Path, *, owners: bool = False) -> None:
        self._root, self._owners = root, owners
        self._entries = self._bytes = 0
        self.written: set[Path] = set()  # by the current layer: whiteouts apply to the layers below it

    def add(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        self._entries += 1
        self._bytes += member.size
        if self._entries > _MAX_ENTRIES or self._bytes > _MAX_BYTES:
            raise BaseError(
                "the image unpacks to more than any image holds",
                code="base-layer-too-large",
                where=member.name,
                why="a bomb",
            )
        path = self.place(member.name)
        if path == self._root:
            return
        self._make_parents(path)
        if path.name.startswith(_WHITEOUT):
            self._white_out(path)
        else:
            self._put(member, archive, path)

    def place(self, name: str, *, follow_last: bool = False) -> Path:
        """The path that `name` means, below the root and with no link in it."""
        parts = [part for part in reversed(name.split("/")) if part not in ("", ".")]
        path, followed = self._root, 0
        while parts:
            part = parts.pop()
            if part == "..":
                path = path if path == self._root else path.parent
                continue
            path /= part
            if path.is_symlink() and (parts or follow_last):
                followed += 1
                if followed > _MAX_LINKS:
                    raise BaseError("links run in circles", code="base-layer-invalid", where=name)
                target = os.readlink(path)
                path = self._root if target.startswith("/") else path.parent
                parts += [each for each in reversed(target.split("/")) if each not in ("", ".")]
        if len(path.parts) - len(self._root.parts) > _MAX_DEPTH:
            raise BaseError(
                f"more than {_MAX_DEPTH} folders lie in each other", code="base-layer-invalid", where=f"{name[:200]}…"
            )
        return path

    def _make_parents(self, path: Path) -> None:
        """Make the parents of a path that `place` gave: those that exist are no links."""
        missing = []
        parent = path.parent
        while not parent.is_dir():
            missing.append(parent)
            parent = parent.parent
        for each in reversed(missing):
            _remove(each)  # a file, where this layer has a directory
            each.mkdir()

    def _mark(self, path: Path) -> None:
        """Record the path as this layer's, with the directories that lead there."""
        while path not in self.written and path != self._root:
            self.written.add(path)
            path = path.parent

    def _white_out(self, path: Path) -> None:
        if path.name == _OPAQUE:
            for child in path.parent.iterdir():
                self._remove_lower(child)
            return
        hidden = path.name.removeprefix(_WHITEOUT)
        if hidden in ("", ".", ".."):
            raise BaseError("a whiteout hides what it may not", code="base-layer-invalid", where=path.name)
        self._remove_lower(path.with_name(hidden))

    def _remove_lower(self, path: Path) -> None:
        """Remove what lower layers have there; a directory that this layer writes into loses the rest."""
        if path not in self.written:
            _remove(path)
        elif path.is_dir() and not path.is_symlink():
            for child in path.iterdir():
                self._remove_lower(child)

    def _put(self, member: tarfile.TarInfo, archive: tarfile.TarFile, path: Path) -> None:
        if not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
            return  # devices and pipes: the sandbox has its own
        source = self.place(member.linkname) if member.islnk() else None
        if source is not None and not (source.is_file() or source.is_symlink()):
            raise BaseError(
                "a hard link leads to no file",
                code="base-layer-invalid",
                where=member.name,
                why=f"to {member.linkname}",
            )
        if source == path:
            return
        self._mark(path)
        if not (member.isdir() and path.is_dir() and not path.is_symlink()):
            _remove(path)
        if source is not None:
            os.link(source, path, follow_symlinks=False)
        elif member.issym():
            path.symlink_to(member.linkname)
        elif member.isdir():
            path.mkdir(exist_ok=True)
            self._set_mode(path, member, 0o700)
        else:
            content = archive.extractfile(member)
            assert content is not None  # noqa: S101 - a regular file has one
            with path.open("xb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
            self._set_mode(path, member, 0o600)
        if self._owners and member.issym():
            os.lchown(path, member.uid, member.gid)

    def _set_mode(self, path: Path, member: tarfile.TarInfo, least: int) -> None:
        """Set the mode of a file or directory; `least` are the minimum permissions of its owner."""
        if self._owners:
            os.chown(path, member.uid, member.gid)  # which takes set-user-id away
            path.chmod(stat.S_IMODE(member.mode))
        else:
            path.chmod(stat.S_IMODE(member.mode) & 0o755 | least)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
