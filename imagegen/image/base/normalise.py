"""A file tree as a tar that depends on nothing but its files: a base's whole root, and the difference of two trees.

mmdebstrap gives a tar whose files differ between two runs in times, logs, caches, and in files from the host.
`normalise` drops those, sorts the others, and writes only the headers that the image needs. Sources: tar(5)
for pax headers; the files that differ were found by comparing builds, and in Debian's ReproducibleInstalls wiki page.
"""

from __future__ import annotations

import filecmp
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from imagegen.core.errors import BaseError
from imagegen.core.layer_tar import DAMAGED, MAX_DEPTH, Allowance, Bounded
from imagegen.core.layer_tar import members as read_members
from imagegen.core.layer_tree import whiteout_of
from imagegen.core.types import EPOCH

# Documentation stays out of the image, except for copyright files, also when apt installs packages later. The last
# rule that matches wins, as dpkg(1) says of --path-exclude and --path-include.
DOCUMENTATION = (
    ("exclude", "/usr/share/doc/*"),
    ("include", "/usr/share/doc/*/copyright"),
    ("exclude", "/usr/share/info/*"),
    ("exclude", "/usr/share/linda/*"),
    ("exclude", "/usr/share/lintian/*"),
    ("exclude", "/usr/share/locale/*"),
    ("include", "/usr/share/locale/locale.alias"),
    ("exclude", "/usr/share/man/*"),
)

# Files that differ between builds or come from the host that built. Engines provide /dev, hostname and resolv.conf.
_STATE = (
    "dev/*",
    "etc/*-",  # the account files as they were before the last change
    "etc/.pwd.lock",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/ssh/ssh_host_*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/fontconfig/*",
    "var/cache/ldconfig/*",  # holds inode numbers
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/lib/dpkg/arch",  # says what dpkg knows by itself; only some versions of mmdebstrap write it
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/systemd/catalog/database",
    "var/log/*",
)
EMPTIED = ("etc/machine-id", "var/lib/dbus/machine-id")  # systemd's sign for "make one at the first boot"


def normalise(source: BinaryIO, write: Callable[[bytes], object], files: Mapping[str, bytes]) -> None:
    """Write the tar in `source` (seekable, uncompressed) to `write`, normalised, with `files` (path -> contents) in it.

    Entries are sorted by path; owners are numbers; extended attributes are kept, all else that tar can say is not.
    Raises BaseError, naming the member, for a path that leaves the tree, two members of one path, a member without a
    directory above it, a device, a hard link to nothing.
    """
    with _opened(source) as tar:
        members = _members(tar)
        written: dict[str, str] = {}  # member that holds contents -> the path that they were written at
        for path in sorted(_kept(members, files) | set(files)):
            if path in files:
                _write(write, _header(path), files[path])
            elif not (members[path].isreg() or members[path].islnk()):
                _write(write, _header(path, members[path]))
            elif (holder := _holder(members, path)) in written:
                link = _header(path, members[holder])
                link.type, link.linkname = tarfile.LNKTYPE, written[holder]
                _write(write, link)
            else:
                written[holder] = path
                body = tar.extractfile(members[holder])
                _write(write, _header(path, members[holder]), body.read() if body and path not in EMPTIED else b"")
    write(b"\0" * tarfile.BLOCKSIZE * 2)


def read(source: BinaryIO, *paths: str) -> list[bytes]:
    """The contents of files in the tar in `source`. Raises BaseError for a file that is not there."""
    with _opened(source) as tar:
        members = _members(tar)
        contents = []
        for path in paths:
            body = tar.extractfile(members[path]) if path in members else None
            if body is None:
                raise BaseError(f"the base has no file /{path}", code="base-incomplete")
            contents.append(body.read())
    return contents


def dpkg_configuration() -> bytes:
    """DOCUMENTATION as a file for /etc/dpkg/dpkg.cfg.d, so that packages installed later are treated alike."""
    return "".join(f"path-{verb}={pattern}\n" for verb, pattern in DOCUMENTATION).encode()


@contextmanager
def _opened(source: BinaryIO) -> Iterator[tarfile.TarFile]:
    source.seek(0)
    try:
        with tarfile.open(fileobj=source, mode="r:", tarinfo=Bounded) as tar:
            yield tar
    except DAMAGED as error:
        raise _refused(None, str(error)) from error


def _members(tar: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Path -> member, with paths relative to the root, checked; the root itself is left to the engine."""
    members: dict[str, tarfile.TarInfo] = {}
    for member in read_members(tar):
        if member.name in members:
            raise _refused(member, "another member has the same path")
        if member.name:
            members[member.name] = member
    tar.members = [*members.values()]  # type: ignore[attr-defined]  # in which targets of links are looked for
    for path, member in members.items():
        parent = path.rpartition("/")[0]
        if parent and not (parent in members and members[parent].isdir()):
            raise _refused(member, "no directory is above it")
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()) and not _is_dropped(path, member):
            raise _refused(member, "it is a device or a pipe")
        if member.islnk():
            _holder(members, path)
    return members


def _holder(members: Mapping[str, tarfile.TarInfo], path: str) -> str:
    """The member that holds the contents of the regular file or hard link at `path`."""
    seen = set()
    while members[path].islnk():
        seen.add(path)
        path = members[path].linkname
        if path in seen or path not in members:
            raise _refused(members[min(seen)], "it is a hard link to nothing")
    if not members[path].isreg():
        raise _refused(members[path], "a hard link leads to it, and it is not a file")
    return path


def _kept(members: Mapping[str, tarfile.TarInfo], files: Mapping[str, bytes]) -> set[str]:
    """Paths that are not dropped, and the directories above them."""
    paths = {path.rpartition("/")[0] for path in files} - {""}
    for path in sorted(members, reverse=True):  # the contents of a directory come before it
        if path in paths or not _is_dropped(path, members[path]):
            paths.add(path)
            paths.add(path.rpartition("/")[0])
    paths.discard("")
    if missing := paths - set(members):
        raise BaseError(f"the base has no directory /{min(missing)}", code="base-incomplete")
    return paths


def _is_dropped(path: str, member: tarfile.TarInfo) -> bool:
    if path.rpartition("/")[0] == "usr/share/doc" and member.issym():
        return False  # the way to the copyright of a package that shares another's
    rules = (verb for verb, pattern in reversed(DOCUMENTATION) if fnmatchcase(f"/{path}", pattern))
    return next(rules, "include") == "exclude" or is_state(path)


def is_state(path: str) -> bool:
    """Return whether the path, relative to the root, holds state of the machine that built or a cache."""
    return any(fnmatchcase(path, pattern) for pattern in _STATE)


def _header(path: str, like: tarfile.TarInfo | None = None) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.mtime = EPOCH
    if like is None:
        return info
    info.type, info.mode, info.uid, info.gid = like.type, like.mode & 0o7777, like.uid, like.gid
    info.linkname = like.linkname if like.issym() else ""
    info.pax_headers = {key: value for key, value in like.pax_headers.items() if key.startswith("SCHILY.xattr.")}
    return info


def _write(write: Callable[[bytes], object], info: tarfile.TarInfo, data: bytes = b"") -> None:
    if info.isreg():
        info.type, info.size = tarfile.REGTYPE, len(data)
    write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    write(data + b"\0" * (-len(data) % tarfile.BLOCKSIZE))


def _refused(member: tarfile.TarInfo | None, why: str) -> BaseError:
    return BaseError(
        "mmdebstrap's archive has an invalid member",
        code="base-content-invalid",
        where=member.name if member else None,
        why=why,
    )


# The difference of two file trees as one layer: a normalised tar that depends on nothing but the files.
#
# Added and changed entries stand in it with their owners, modes and extended attributes, removed ones as whiteouts;
# state of this machine, caches, and the engines' mounts are left out. Source: OCI image-spec
# v1.1, layer.md (change types, hard links, whiteouts).

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
    write: Callable[[bytes], object],
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
    above = {parent for path in (*put, *gone) for parent in _parents(path)}
    written: dict[tuple[int, ...], str] = {}  # device and inode -> the path that its contents stand at
    for path in sorted({*put, *above, *whiteouts}):
        if path in whiteouts:
            info = tarfile.TarInfo(path)
            info.mode, info.mtime = 0, EPOCH
            write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        else:
            _write_entry(root, path, after[path], written, write)
    write(b"\0" * tarfile.BLOCKSIZE * 2)
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


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _write_entry(
    root: Path, path: str, entry: PathState, written: dict[tuple[int, ...], str], write: Callable[[bytes], object]
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
    write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    if info.size:
        with (root / path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                write(chunk)
        write(b"\0" * (-info.size % tarfile.BLOCKSIZE))


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
