"""Two layers as streams of files: which is the first that differs, and in what. Nothing is unpacked.

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
from imagegen.core.registry.tar import DAMAGED, Bounded, members
from imagegen.image.inventory.layers import Stream

_BUFFER = 1 << 16
_CHUNK = 1 << 20
_KEPT = 16  # bytes of a file's beginning: as many as the header of byte-code has
_MAX_ENTRIES = 3_000_000


@dataclass(frozen=True)
class Entry:
    """A file's header and content hash; `head` is the content's beginning."""

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

    def timeless(self) -> Entry:
        """Return the entry without its times."""
        pax = tuple(pair for pair in self.pax if pair[0] not in ("mtime", "atime", "ctime"))
        return replace(self, mtime=0, pax=pax)


@dataclass(frozen=True)
class Pair:
    """The first entry that differs: what is `there` (published) and what is `here` (made again); None: it has none."""

    path: str
    there: Entry | None
    here: Entry | None
    order: bool = False  # the other stream has the same entry elsewhere

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the entry that differ."""
        if self.there is None or self.here is None:
            return ()
        names = ("kind", "mode", "uid", "gid", "names", "mtime", "size", "target", "pax", "sha256")
        return tuple(name for name in names if getattr(self.there, name) != getattr(self.here, name))


def entries(tar: Stream) -> Iterator[Entry]:
    """Yield the entries of an uncompressed layer, in its order. Raises FetchError for a malformed tar."""
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", tar), mode="r|", bufsize=_BUFFER, tarinfo=Bounded) as archive:
            for number, member in enumerate(members(archive)):
                if number >= _MAX_ENTRIES:
                    raise FetchError(
                        "a layer holds more than any layer holds",
                        code="fetch-layer-too-large",
                        where=member.name,
                        why="a bomb",
                    )
                yield _entry(member, archive)
    except DAMAGED as error:
        raise FetchError("a layer cannot be read", code="fetch-layer-invalid", why=str(error)) from error


def _entry(member: tarfile.TarInfo, archive: tarfile.TarFile) -> Entry:
    digest, head = hashlib.sha256(), b""
    content = archive.extractfile(member) if member.isreg() else None
    while content is not None and (chunk := content.read(_CHUNK)):
        head = head or chunk[:_KEPT]
        digest.update(chunk)
    return Entry(
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


def first_difference(there: list[Entry], here: list[Entry], *, times: bool = True) -> Pair | None:
    """The first entry, in the order of the streams, that is not the same in both; None: all are, as tar entries go.

    Without `times` entries may differ in them.
    """

    def seen(entry: Entry) -> Entry:
        return entry if times else entry.timeless()

    for one, other in zip_longest(there, here):
        if one is None or other is None:
            return Pair((one or other).path, one, other)
        if seen(one) == seen(other):
            continue
        if one.path == other.path:
            return Pair(one.path, one, other)
        theirs, ours = ({each.path for each in both} for both in (there, here))
        if one.path not in ours:
            return Pair(one.path, one, None)
        if other.path not in theirs:
            return Pair(other.path, None, other)
        return Pair(one.path, one, next(each for each in here if each.path == one.path), order=True)
    return None
