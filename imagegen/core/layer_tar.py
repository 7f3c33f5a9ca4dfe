"""Reading a layer's tar as a stream, within bounded memory: layers are hostile.

Source: OCI image-spec v1.1, layer.md; the formats that Python's tarfile reads (ustar, GNU, pax).
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any

_MAX_HEADER = 1 << 20  # bytes of a pax header or a long name
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_SPARSE = "a sparse file, which layers do not hold"
# What tarfile raises for what is no tar; it follows headers that are about the next header by calling itself.
DAMAGED = (tarfile.TarError, EOFError, ValueError, RecursionError)
_MAX_BYTES = 200 << 30  # of one layer, unpacked: the largest images of the field have 60 GB
# A file of zeros may shrink a thousandfold, a whole layer of several gigabytes does not: the field's shrink fourfold.
_SMALL = 8 << 30  # bytes
_MAX_RATIO = 50


def most_unpacked(size: int) -> int:
    """Return how many bytes a layer may unpack to whose compressed blob has `size` bytes; more is a bomb."""
    return min(_MAX_BYTES, max(_SMALL, _MAX_RATIO * size))


class Bounded(tarfile.TarInfo):
    """Headers that are read whole are of a length that headers have.

    Files with holes are refused: their maps have no bound, and no builder of images writes any.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in _HEADERS and self.size > _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(_SPARSE)
        return super()._proc_member(archive)  # type: ignore[misc]  # the hook that tarfile documents for subclasses

    def _proc_gnusparse_10(self, *_: Any) -> None:
        """GNU tar's newest form, in which the map is part of the file's content."""
        raise tarfile.ReadError(_SPARSE)


def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive that is a stream; none is kept once the next is requested."""
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # which would hold all of them
        yield member
