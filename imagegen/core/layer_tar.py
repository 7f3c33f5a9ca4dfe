"""Read tar archives of others as streams, within bounded memory: layers are hostile.

Sources: OCI image-spec v1.1, layer.md (names such as `./etc/`, whiteouts); POSIX.1-2008, pax (records of extended
headers); the formats that Python's tarfile reads (ustar, GNU, pax).
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PATH_MAX = 4096  # bytes: Linux opens no longer path
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
MAX_DEPTH = 200  # nested folders, ten times as many as in images; removing them takes a stack frame for each
_NO_PARTS = {"", ".", "..", *(WHITEOUT + name for name in ("", ".", ".."))}
_MAX_HEADER = 1 << 20  # bytes of all headers about one member; archive/tar of Go takes as many
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_SPARSE = "a sparse file, which layers do not hold"
_MAX_ID, _MAX_TIME = 1 << 32, 1 << 40  # Go's zero time is -6e10
# Errors of tarfile for an invalid tar; it follows headers that are about the next header by calling itself.
DAMAGED = (tarfile.TarError, EOFError, ValueError, RecursionError)
_MAX_BYTES = 200 << 30  # of one unpacked layer; the largest images of the field have 60 GB
# A file of zeros may shrink a thousandfold, but the field's layers of several gigabytes shrink fourfold.
SMALL = 8 << 30  # bytes
_MAX_RATIO = 50


def most_unpacked(size: int) -> int:
    """Return how many bytes a layer may unpack to whose compressed blob has `size` bytes; more is a bomb."""
    return min(_MAX_BYTES, max(SMALL, _MAX_RATIO * size))


def member_name(text: str) -> str:
    """Return the path that the name of a member or the target of a hard link means: relative, "" for the root.

    Engines take names as relative to the root, so one `./` or `/` before them means nothing: tar, Bazel and Docker
    write `./etc/`, Nix (stream_layered_image.py) `/nix/store`, kaniko `/` and absolute targets of hard links. Raises
    ValueError for a name with any other part that is empty, `.` or `..`, with a NUL, with a whiteout of such a part,
    and for one that is longer than Linux allows or too deep.
    """
    name = text.rstrip("/")
    name = "" if name == "." else name.removeprefix("/" if name.startswith("/") else "./")
    components = name.split("/") if name else []
    if not _NO_PARTS.isdisjoint(components):
        raise ValueError(f"the name {text[:200]!r} leads out of the tree, or is not in its plain form")
    if len(components) > MAX_DEPTH or _is_no_path(name):
        raise ValueError(f"the name {text[:200]!r} is too long, too deep or holds a NUL")
    return name


def is_below(path: str) -> bool:
    """Return whether a path can be the end of a member's name: relative, plain, and of half the depth."""
    try:
        return path != "" and member_name(path) == path and path.count("/") < MAX_DEPTH // 2
    except ValueError:
        return False


def _is_no_path(text: str) -> bool:
    return "\0" in text or len(text if text.isascii() else os.fsencode(text)) > PATH_MAX


@dataclass
class Allowance:
    """Bounds for the members of all layers of an image together: their number, bytes of contents, bytes of text."""

    members: int = 3_000_000
    contents: int = _MAX_BYTES
    text: int = 256 << 20

    def take(self, contents: int, *texts: str | bytes, members: int = 1) -> bool:
        """Count members, the bytes of their contents, and texts that are kept; return whether all are within bounds."""
        self.members -= members
        self.contents -= contents
        self.text -= sum(sys.getsizeof(text) for text in texts if text)
        return min(self.members, self.contents, self.text) >= 0


class Bounded(tarfile.TarInfo):
    """Headers that are read whole are of a length that headers have.

    Files with holes are refused: their maps have no bound, and no builder of images writes any.
    """

    def _proc_member(self, archive: Any) -> Any:
        headers = getattr(archive, "header_bytes", 0) + tarfile.BLOCKSIZE + self.size if self.type in _HEADERS else 0
        if headers > _MAX_HEADER or self.size < 0:
            raise tarfile.ReadError(f"headers of {headers} bytes about one member")
        archive.header_bytes = headers
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(_SPARSE)
        return super()._proc_member(archive)  # type: ignore[misc]  # the hook that tarfile documents for subclasses

    def _proc_pax(self, archive: Any) -> Any:
        """Return the next member with the fields of this pax header; a global one says nothing, as for engines.

        The library's own method takes time and memory that grow with the square of the header before Python 3.11.10.
        """
        fields = dict(_records(archive.fileobj.read(_padded(self.size))[: self.size]))
        if any(keyword.startswith("GNU.sparse.") for keyword in fields):
            raise tarfile.ReadError(_SPARSE)
        archive.pax_headers = {} if self.type == tarfile.XGLTYPE else fields  # which the next member takes
        try:
            member = self.fromtarfile(archive)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a header without its member: {error}") from error
        archive.pax_headers = {}
        if member.isreg() or member.type not in tarfile.SUPPORTED_TYPES:
            archive.offset = member.offset_data + _padded(member.size)  # the field `size` may say another one
        return member


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield keyword and value of each record, "LENGTH KEYWORD=VALUE" and a newline. Raises ReadError for others."""
    at, size = 0, len(data.rstrip(b"\0"))
    while at < size:
        length, _, _ = data[at : at + 8].partition(b" ")
        end = at + int(length) if length.isdigit() else 0
        keyword, equals, value = data[at + len(length) + 1 : end - 1].partition(b"=")
        if not (keyword and equals and at < end <= size and data[end - 1 : end] == b"\n"):
            raise tarfile.ReadError("a pax header with a malformed record")
        yield keyword.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape")
        at = end


def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive; none is kept once the next is requested.

    Names and targets of hard links are as `member_name` returns them. Raises ValueError for others, and for numbers
    that no file has.
    """
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # which would hold all of them
        member.name = member_name(member.name)
        if member.islnk():
            member.linkname = member_name(member.linkname)
        elif _is_no_path(member.linkname):
            raise ValueError(f"{member.name[:200]!r} is a link to no path")
        is_odd = not (member.name or member.isdir()) or member.size < 0 or not -_MAX_TIME < member.mtime < _MAX_TIME
        if is_odd or any(not 0 <= number < _MAX_ID for number in (member.mode, member.uid, member.gid)):
            raise ValueError(f"{member.name[:200]!r} has a kind, size, time or owner that no file has")
        yield member
