"""A deterministic tar stream, the only writer of the layer format.

POSIX.1-2001 (pax) headers, as the standard library writes them, from fields that hold nothing of this machine: uid
and gid 0, no names, one mtime. Source of the layer rules: OCI image-spec v1.1, layer.md.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from typing import TYPE_CHECKING

from imagegen.core.image_format import EPOCH
from imagegen.core.layer_tar import member_name

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_USTAR_NAME = 100  # bytes
_USTAR_SIZE = 1 << 33
_OWNERS = b"0000000\0" * 2
_TIME = b"%011o\0" % EPOCH
_REST = bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8 + 155 + 12)
_REST_SUM = sum(_REST) + 8 * ord(" ")  # the checksum's own field counts as spaces


class TarWriter:
    """Writes entries to `sink` in the order given. Parent directories come first, once each, all alike (0755).

    `below` are directories of lower layers with modes of their own, which get no entry.
    """

    def __init__(self, sink: SupportsWrite[bytes], below: Iterable[str] = ()) -> None:
        self._write = sink.write
        self._directories = dict.fromkeys(path.strip("/") for path in below)  # in the order of their entries
        self._complete: set[str] = set()  # directories that have an entry and whose parents have one

    def directory(self, path: str, mode: int = 0o755) -> None:
        """A directory and its parents, unless this stream has them; `path` is absolute in the image."""
        whole = path.strip("/")
        if whole in self._complete:
            return
        self._complete.add(whole)
        names = whole.split("/")
        for depth in range(1, len(names) + 1):
            name = "/".join(names[:depth])
            if name not in self._directories:
                self._directories[name] = None
                self.header(name, tarfile.DIRTYPE, mode=mode if depth == len(names) else 0o755)

    def file(self, path: str, size: int, chunks: Iterable[bytes], *, executable: bool = False) -> None:
        """A regular file of exactly `size` bytes."""
        self.directory(path.rpartition("/")[0])
        self.header(path.strip("/"), tarfile.REGTYPE, mode=0o755 if executable else 0o644, size=size)
        written = 0
        for chunk in chunks:
            self._write(chunk)
            written += len(chunk)
        if written != size:
            raise ValueError(f"{path}: {written} bytes instead of {size}")
        self._write(b"\0" * (-size % tarfile.BLOCKSIZE))

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        self.directory(path.rpartition("/")[0])
        self.header(path.strip("/"), tarfile.SYMTYPE, mode=0o777, target=target)

    def hard_link(self, path: str, target: str, *, executable: bool = False) -> None:
        """A hard link to a file of this stream, with the mode of that file: some readers set it again."""
        self.directory(path.rpartition("/")[0])
        self.header(path.strip("/"), tarfile.LNKTYPE, mode=0o755 if executable else 0o644, target=target.strip("/"))

    def close(self) -> None:
        """The end-of-archive mark, without padding to a record: nothing reads these from tape."""
        self._write(b"\0" * tarfile.BLOCKSIZE * 2)

    def header(self, name: str, kind: bytes, *, mode: int, size: int = 0, target: str = "") -> None:
        """Write the header of a member; `kind` is a type of `tarfile`, and `target` of a link."""
        member_name(name)
        path = name + "/" if kind == tarfile.DIRTYPE else name
        if target == "" and size < _USTAR_SIZE and path.isascii():
            self._write(_header(path.encode(), kind, mode, size))
            return
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, size, target, EPOCH
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))


def _header(path: bytes, kind: bytes, mode: int, size: int) -> bytes:
    """Return a tar header as the standard library writes it, in a tenth of the time (POSIX.1-2001, ustar and pax).

    Stacks have tens of thousands of small files; a test holds this to the library's bytes.
    """
    header = _ustar(path[:_USTAR_NAME], kind, mode, size, _TIME)
    if len(path) <= _USTAR_NAME:
        return header
    record = b" path=%s\n" % path
    length = len(record) + len(str(len(record)))
    record = b"%d%s" % (len(record) + len(str(length)), record)  # the length counts its own digits
    padding = bytes(-len(record) % tarfile.BLOCKSIZE)
    return _ustar(b"././@PaxHeader", tarfile.XHDTYPE, 0, len(record), b"%011o\0" % 0) + record + padding + header


def _ustar(name: bytes, kind: bytes, mode: int, size: int, time: bytes) -> bytes:
    before = b"%s%07o\0%s%011o\0%s" % (name.ljust(_USTAR_NAME, b"\0"), mode, _OWNERS, size, time)
    return b"%s%06o\0 %s%s" % (before, sum(before) + kind[0] + _REST_SUM, kind, _REST)
