"""A base's root as a tar that depends on nothing but its files.

mmdebstrap gives a tar whose files differ between two runs in times, logs, caches, and in files from the host.
`normalise` drops those, sorts the others, and writes only the headers that the image needs. Sources: tar(5)
for pax headers; the files that differ were found by comparing builds, and in Debian's ReproducibleInstalls wiki page.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, BinaryIO

from imagegen.core.errors import BaseError
from imagegen.core.image_format import EPOCH
from imagegen.core.layer_tar import DAMAGED, Bounded
from imagegen.core.layer_tar import members as read_members

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

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


def normalise(source: BinaryIO, sink: SupportsWrite[bytes], files: Mapping[str, bytes]) -> None:
    """Write the tar in `source` (seekable, uncompressed) to `sink`, normalised, with `files` (path -> contents) in it.

    Entries are sorted by path; owners are numbers; extended attributes are kept, all else that tar can say is not.
    Raises BaseError, naming the member, for a path that leaves the tree, two members of one path, a member without a
    directory above it, a device, a hard link to nothing.
    """
    with _opened(source) as tar:
        members = _members(tar)
        written: dict[str, str] = {}  # member that holds contents -> the path that they were written at
        for path in sorted(_kept(members, files) | set(files)):
            if path in files:
                _write(sink, _header(path), files[path])
            elif not (members[path].isreg() or members[path].islnk()):
                _write(sink, _header(path, members[path]))
            elif (holder := _holder(members, path)) in written:
                link = _header(path, members[holder])
                link.type, link.linkname = tarfile.LNKTYPE, written[holder]
                _write(sink, link)
            else:
                written[holder] = path
                body = tar.extractfile(members[holder])
                _write(sink, _header(path, members[holder]), body.read() if body and path not in EMPTIED else b"")
    sink.write(b"\0" * tarfile.BLOCKSIZE * 2)


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


def _write(sink: SupportsWrite[bytes], info: tarfile.TarInfo, data: bytes = b"") -> None:
    if info.isreg():
        info.type, info.size = tarfile.REGTYPE, len(data)
    sink.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    sink.write(data + b"\0" * (-len(data) % tarfile.BLOCKSIZE))


def _refused(member: tarfile.TarInfo | None, why: str) -> BaseError:
    return BaseError(
        "mmdebstrap's archive has an invalid member",
        code="base-content-invalid",
        where=member.name if member else None,
        why=why,
    )
