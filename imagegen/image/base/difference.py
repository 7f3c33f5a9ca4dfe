"""The difference of two file trees as one layer: a normalised tar that depends on nothing but the files.

Added and changed entries stand in it with their owners, modes and extended attributes, removed ones as whiteouts;
state of this machine, caches, and the engines' mounts are left out. Source: OCI image-spec
v1.1, layer.md (change types, hard links, whiteouts).
"""

from __future__ import annotations

import filecmp
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen.core.errors import BaseError
from imagegen.core.image_format import EPOCH
from imagegen.core.layer_tar import MAX_DEPTH, Allowance
from imagegen.core.layer_tree import parents, whiteout_of
from imagegen.image.base.normalise import EMPTIED, is_state

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_MOUNTED = ("dev", "proc", "run", "sys", "tmp")  # at the top: an engine's, or empty in every container
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PathState:
    """The entry at a path; `changed` are inode and time of the last change, which no program can set back."""

    mode: int  # with the type
    uid: int
    gid: int
    size: int
    target: str  # of a symbolic link
    changed: tuple[int, int]


def snapshot(root: Path, first_id: int = 0) -> dict[str, PathState]:
    """Return path -> entry of all that is below `root`, except for the engines' mounts. Links are not followed.

    Owners are counted from `first_id`. Raises BaseError for more entries, more bytes of names, or deeper
    directories, than a base has.
    """
    return dict(_walk(root, "", first_id, Allowance()))


def write_difference(
    root: Path,
    before: Mapping[str, PathState],
    original: Path,
    sink: SupportsWrite[bytes],
    *,
    first_id: int = 0,
    most: int = 1 << 40,
) -> tuple[list[str], list[str]]:
    """Write the layer that turns the tree of `before` into the one that `root` is now; return paths put and removed.

    `original` holds the contents that regular files had before. Directories above an entry are in the layer with their
    own modes, since some engines make them anew. Owners are counted from `first_id`.

    Raises BaseError for a device, pipe or socket, and for more than `most` bytes of files.
    """
    after = snapshot(root, first_id)
    put = [path for path in after if not is_state(path) and _differs(path, after[path], before, root, original)]
    if sum({after[path].changed[0]: after[path].size for path in put}.values()) > most:
        raise _too_large(f"{most >> 20} MiB")
    gone = [path for path in before if path not in after and not is_state(path) and _has_parent(path, after)]
    whiteouts = {whiteout_of(path) for path in gone}
    above = {parent for path in (*put, *gone) for parent in parents(path)}
    written: dict[tuple[int, ...], str] = {}  # device and inode -> the path that its contents stand at
    for path in sorted({*put, *above, *whiteouts}):
        if path in whiteouts:
            info = tarfile.TarInfo(path)
            info.mode, info.mtime = 0, EPOCH
            sink.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        else:
            _write_entry(root, path, after[path], written, sink)
    sink.write(b"\0" * tarfile.BLOCKSIZE * 2)
    return put, gone


def _too_large(most: str) -> BaseError:
    return BaseError("the packages leave more than any layer holds", code="base-layer-too-large", why=f"over {most}")


def _walk(root: Path, below: str, first_id: int, allowance: Allowance) -> Iterator[tuple[str, PathState]]:
    if below.count("/") >= MAX_DEPTH:
        raise _too_large(f"{MAX_DEPTH} directories in each other")
    entries = []
    with os.scandir(root / below) as listing:
        for entry in listing:
            _take(allowance, below, entry.name)
            entries.append(entry)
    for child in sorted(entries, key=lambda child: child.name):
        if not below and child.name in _MOUNTED:
            continue
        path = f"{below}/{child.name}" if below else child.name
        status = child.stat(follow_symlinks=False)
        target = os.readlink(child.path) if child.is_symlink() else ""
        _take(allowance, target, members=0)
        changed = (status.st_ino, status.st_ctime_ns)
        uid, gid = status.st_uid - first_id, status.st_gid - first_id
        yield path, PathState(status.st_mode, uid, gid, status.st_size, target, changed)
        if child.is_dir(follow_symlinks=False):
            yield from _walk(root, path, first_id, allowance)


def _take(allowance: Allowance, *texts: str, members: int = 1) -> None:
    if not allowance.take(0, *texts, members=members):
        raise _too_large("the files, or the bytes of names, of any image")


def _differs(path: str, now: PathState, before: Mapping[str, PathState], root: Path, original: Path) -> bool:
    then = before.get(path)
    if then is None or (then.mode, then.uid, then.gid, then.target) != (now.mode, now.uid, now.gid, now.target):
        return True
    if not stat.S_ISREG(now.mode) or then.changed == now.changed:
        return False
    return then.size != now.size or not filecmp.cmp(root / path, original / path, shallow=False)


def _has_parent(path: str, after: Mapping[str, PathState]) -> bool:
    """Return whether the directory above is still there, since a directory is removed with its contents."""
    parent = path.rpartition("/")[0]
    return not parent or (parent in after and stat.S_ISDIR(after[parent].mode))


def _write_entry(
    root: Path, path: str, entry: PathState, written: dict[tuple[int, ...], str], sink: SupportsWrite[bytes]
) -> None:
    info = tarfile.TarInfo(path)
    info.mode, info.uid, info.gid, info.mtime = stat.S_IMODE(entry.mode), entry.uid, entry.gid, EPOCH
    if stat.S_ISDIR(entry.mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(entry.mode):
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
    elif not stat.S_ISREG(entry.mode):
        raise BaseError(
            "a package creates a file that layers cannot have",
            code="base-packages-unsupported-file",
            where=f"/{path}",
            why="it is a device or a pipe",
        )
    else:
        inode = (entry.changed[0],)
        if inode in written:
            info.type, info.linkname = tarfile.LNKTYPE, written[inode]
        else:
            written[inode] = path
            info.size = 0 if path in EMPTIED else entry.size
    info.pax_headers = _attributes(root / path)
    sink.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    if info.size:
        with (root / path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                sink.write(chunk)
        sink.write(b"\0" * (-info.size % tarfile.BLOCKSIZE))


def _attributes(path: Path) -> dict[str, str]:
    """File capabilities, as the pax headers that tar writes for them.

    Capabilities of a user namespace (revision 3 of struct vfs_ns_cap_data, which ends in the namespace's root) are
    written as the others (revision 2). Source: capabilities(7).
    """
    try:
        value = os.getxattr(path, "security.capability", follow_symlinks=False)
    except OSError:  # none, or a file system without them
        return {}
    if value[3:4] == b"\x03":
        value = value[:3] + b"\x02" + value[4:20]
    return {"SCHILY.xattr.security.capability": value.decode("utf-8", "surrogateescape")}
