"""Find the first file that differs between two layers. They are read as streams and not unpacked.

Source: POSIX.1-2001 (ustar, pax) as the standard library reads it.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import IO, cast

from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.image.inventory.layers import Stream

_BUFFER = 1 << 16
_READ_SIZE = 1 << 20
_HEAD_SIZE = 16  # bytes, the size of the header of byte-code


@dataclass(frozen=True)
class FileEntry:
    """A file's header and content hash; `head` has the first bytes of the content."""

    path: str
    kind: bytes
    mode: int
    uid: int
    gid: int
    names: tuple[str, str]  # of user and group
    mtime: float
    size: int
    target: str
    pax: tuple[tuple[str, str], ...]
    sha256: str
    head: bytes = b""

    def timeless(self) -> FileEntry:
        """Return the entry without its times."""
        pax = tuple(pair for pair in self.pax if pair[0] not in ("mtime", "atime", "ctime"))
        return replace(self, mtime=0, pax=pax)


@dataclass(frozen=True)
class EntryDifference:
    """The first entry that differs, in the published and the rebuilt layer; None if the layer does not have it."""

    path: str
    published: FileEntry | None
    rebuilt: FileEntry | None
    order: bool = False  # the rebuilt layer has the same path at another position

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the entry that differ."""
        if self.published is None or self.rebuilt is None:
            return ()
        names = ("kind", "mode", "uid", "gid", "names", "mtime", "size", "target", "pax", "sha256")
        return tuple(name for name in names if getattr(self.published, name) != getattr(self.rebuilt, name))


def entries(tar: Stream) -> Iterator[FileEntry]:
    """Yield the entries of an uncompressed layer, in its order. Raises FetchError for a malformed tar."""
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", tar), mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
            allowance = Allowance()
            for member in members(archive):
                texts = (member.name, member.linkname, *member.pax_headers, *member.pax_headers.values())
                if not allowance.take(member.size, *texts):
                    raise FetchError(
                        "a layer is larger than the limit",
                        code="fetch-layer-too-large",
                        where=member.name,
                        why="it may be a decompression bomb",
                    )
                yield _entry(member, archive)
    except DAMAGED as error:
        raise FetchError("a layer cannot be read", code="fetch-layer-invalid", why=str(error)) from error


def _entry(member: tarfile.TarInfo, archive: tarfile.TarFile) -> FileEntry:
    digest, head = hashlib.sha256(), b""
    content = archive.extractfile(member) if member.isreg() else None
    while content is not None and (chunk := content.read(_READ_SIZE)):
        head = head or chunk[:_HEAD_SIZE]
        digest.update(chunk)
    return FileEntry(
        path=member.name,
        kind=member.type,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        names=(member.uname, member.gname),
        mtime=member.mtime,
        size=member.size,
        target=member.linkname,
        pax=tuple(sorted(member.pax_headers.items())),
        sha256=digest.hexdigest(),
        head=head,
    )


def first_difference(
    published: list[FileEntry], rebuilt: list[FileEntry], *, times: bool = True
) -> EntryDifference | None:
    """Return the first entry that differs, in the order of the streams; None if all entries are equal.

    Without `times` the times of entries are not compared.
    """
    for old, new in zip_longest(published, rebuilt):
        if old is None or new is None:
            return EntryDifference((old or new).path, old, new)
        if old == new if times else old.timeless() == new.timeless():
            continue
        if old.path == new.path:
            return EntryDifference(old.path, old, new)
        rebuilt_entries = {entry.path: entry for entry in reversed(rebuilt)}
        if old.path not in rebuilt_entries:
            return EntryDifference(old.path, old, None)
        if new.path not in {entry.path for entry in published}:
            return EntryDifference(new.path, None, new)
        return EntryDifference(old.path, old, rebuilt_entries[old.path], order=True)
    return None
