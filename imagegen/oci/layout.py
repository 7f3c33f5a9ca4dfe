"""OCI image layouts.

A layout has blobs by digest in a directory, and an index of its manifests by name. The store, exports, mirrors in
directories and archives for engines have this form. Source: OCI image-spec v1.1, image-layout.md (oci-layout,
index.json, blobs).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from imagegen.core import data
from imagegen.core.errors import FetchError
from imagegen.oci.documents import MANIFEST_TYPE, REF_NAME, Descriptor, digest_of, is_digest, read_index

LAYOUT_FILE, INDEX_FILE, BLOBS = "oci-layout", "index.json", "blobs/sha256"
LAYOUT_VERSION = b'{"imageLayoutVersion":"1.0.0"}'  # content of LAYOUT_FILE
_CHUNK = 1 << 20  # bytes


def blob_name(digest: str) -> str:
    """Return the path of a blob in a layout. Raises FetchError for an invalid digest."""
    if not is_digest(digest):
        raise FetchError(f"{digest!r} is not a digest", code="fetch-invalid-digest")
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def name_of(entry: dict[str, Any]) -> str:
    """Return the name that an entry of an index gives to its manifest; "" without one."""
    annotations = entry.get("annotations")
    return str(annotations.get(REF_NAME, "")) if isinstance(annotations, dict) else ""


def index_entry(name: str, digest: str, size: int, media_type: str = MANIFEST_TYPE) -> dict[str, Any]:
    """Return the entry of an index that gives a name to the manifest with this digest and size in bytes."""
    return Descriptor(media_type, digest, size).as_dict() | {"annotations": {REF_NAME: name}}


def write_index(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return index.json with these entries, sorted by name, or by digest where another program gave none."""
    ordered = sorted(entries, key=lambda entry: name_of(entry) or str(entry["digest"]))
    return json.dumps({"schemaVersion": 2, "manifests": ordered}, indent=1).encode()


class Layout:
    """The layout in the directory `root`. Its files are untrusted: an endless file or a pipe ends no read."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not. Raises FetchError for an invalid digest."""
        return self.root / blob_name(digest)

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of index.json that have sha256 digests, as they are. Raises OSError, FetchError."""
        path = self.root / INDEX_FILE
        items = read_index(data.read(path), str(path))
        return [entry for entry in items if isinstance(entry, dict) and is_digest(str(entry.get("digest")))]

    def find(self, name: str) -> str | None:
        """Return the digest of the first manifest with this name. Raises OSError, FetchError."""
        return next((str(entry["digest"]) for entry in self.entries() if name_of(entry) == name), None)

    def open(self, digest: str) -> BinaryIO:
        """Open a blob, unverified. Raises OSError, FetchError for an invalid digest."""
        # A pipe of that name must not block.
        return open(os.open(self.path(digest), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")

    def chunks(self, digest: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of a blob, unverified. Raises OSError; FetchError unless there are `size` bytes."""
        remaining = size
        with self.open(digest) as blob:
            while chunk := blob.read(min(_CHUNK, remaining + 1)):
                remaining -= len(chunk)
                if remaining < 0:
                    raise FetchError(f"blob {digest} has more than {size} bytes", code="fetch-size-mismatch")
                yield chunk
        if remaining:
            raise FetchError(f"blob {digest} ends after {size - remaining} of {size} bytes", code="fetch-size-mismatch")

    def read(self, digest: str, longest: int = 16 << 20) -> bytes:
        """Return a blob of at most `longest` bytes. Raises OSError; FetchError unless its bytes have this digest."""
        content = data.read(self.path(digest), longest=longest)
        if (actual := digest_of(content)) != digest:
            raise FetchError(f"blob {digest} is damaged", code="fetch-digest-mismatch", why=f"its bytes are {actual}")
        return content

    def create(self) -> None:
        """Create the missing files of an empty layout, except index.json. Raises OSError."""
        (self.root / BLOBS).mkdir(parents=True, exist_ok=True)
        if not (self.root / LAYOUT_FILE).exists():
            data.write(self.root / LAYOUT_FILE, LAYOUT_VERSION)

    def write_index(self, entries: Iterable[dict[str, Any]]) -> None:
        """Replace index.json at once. Raises OSError."""
        data.write(self.root / INDEX_FILE, write_index(entries))
