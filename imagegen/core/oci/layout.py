"""OCI image layouts, and layers as hostile tars.

A layout has blobs by digest in a directory, and an index of its manifests by name: the store, exports, mirrors in
directories and archives for engines have this form. Source: OCI image-spec v1.1, image-layout.md (oci-layout,
index.json, blobs).
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from imagegen.core import data
from imagegen.core.errors import FetchError
from imagegen.core.oci.types import MANIFEST_TYPE, REF_NAME, Descriptor, digest_of, is_digest, read_index

LAYOUT_FILE, INDEX_FILE, BLOBS = "oci-layout", "index.json", "blobs/sha256"
LAYOUT_VERSION = b'{"imageLayoutVersion":"1.0.0"}'  # content of LAYOUT_FILE
_CHUNK = 1 << 20  # bytes


def blob_name(digest: str) -> str:
    """Return the path of a blob in a layout. Raises FetchError for what is no digest."""
    if not is_digest(digest):
        raise FetchError(f"{digest!r} is no digest", code="fetch-invalid-digest")
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def name_of(entry: dict[str, Any]) -> str:
    """Return the name that an entry of an index gives to its manifest; "" without one."""
    annotations = entry.get("annotations")
    return str(annotations.get(REF_NAME, "")) if isinstance(annotations, dict) else ""


def index_entry(name: str, digest: str, size: int) -> dict[str, Any]:
    """Return the entry of an index that gives a name to the manifest with this digest and size in bytes."""
    return Descriptor(MANIFEST_TYPE, digest, size).as_dict() | {"annotations": {REF_NAME: name}}


def write_index(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return index.json with these entries, sorted by name, or by digest where another program gave none."""
    ordered = sorted(entries, key=lambda entry: name_of(entry) or str(entry["digest"]))
    return json.dumps({"schemaVersion": 2, "manifests": ordered}, indent=1).encode()


class Layout:
    """The layout in the directory `root`. Its files are untrusted: an endless file or a pipe ends no read."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not. Raises FetchError for what is no digest."""
        return self.root / blob_name(digest)

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of index.json that have sha256 digests, as they are. Raises OSError, FetchError."""
        path = self.root / INDEX_FILE
        found = read_index(data.read(path), str(path))
        return [each for each in found if isinstance(each, dict) and is_digest(str(each.get("digest")))]

    def find(self, name: str) -> str | None:
        """Return the digest of the first manifest with this name. Raises OSError, FetchError."""
        return next((str(entry["digest"]) for entry in self.entries() if name_of(entry) == name), None)

    def open(self, digest: str) -> BinaryIO:
        """Open a blob, unverified. Raises OSError, FetchError for what is no digest."""
        # A pipe of that name must not block.
        return open(os.open(self.path(digest), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")

    def chunks(self, digest: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of a blob, unverified. Raises OSError; FetchError unless there are `size` bytes."""
        left = size
        with self.open(digest) as blob:
            while chunk := blob.read(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise FetchError(f"blob {digest} has more than {size} bytes", code="fetch-size-mismatch")
                yield chunk
        if left:
            raise FetchError(f"blob {digest} ends after {size - left} of {size} bytes", code="fetch-size-mismatch")

    def read(self, digest: str, longest: int = 16 << 20) -> bytes:
        """Return a blob of at most `longest` bytes. Raises OSError; FetchError unless its bytes have this digest."""
        content = data.read(self.path(digest), longest=longest)
        if (found := digest_of(content)) != digest:
            raise FetchError(f"blob {digest} is damaged", code="fetch-digest-mismatch", why=f"its bytes are {found}")
        return content

    def create(self) -> None:
        """Create what an empty layout has, index.json aside, where it is absent. Raises OSError."""
        (self.root / BLOBS).mkdir(parents=True, exist_ok=True)
        if not (self.root / LAYOUT_FILE).exists():
            data.write(self.root / LAYOUT_FILE, LAYOUT_VERSION)

    def write_index(self, entries: Iterable[dict[str, Any]]) -> None:
        """Replace index.json at once. Raises OSError."""
        data.write(self.root / INDEX_FILE, write_index(entries))


# Reading a layer's tar as a stream, within bounded memory: layers are hostile.
#
# Source: OCI image-spec v1.1, layer.md; the formats that Python's tarfile reads (ustar, GNU, pax).

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
