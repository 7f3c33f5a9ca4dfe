"""Copy the files of locks to a mirror, which is a directory (an OCI image layout) or a repository of a registry.

`imagegen.oci.registry.mirror` describes its format and its readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagegen.core import data, temporary
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, Location, StoreError
from imagegen.core.net import Client
from imagegen.core.progress import Meter
from imagegen.core.store import Store, disk
from imagegen.core.text import counted
from imagegen.mirror.listing import MirrorArtifact
from imagegen.oci.documents import EMPTY, EMPTY_CONTENT, MANIFEST_TYPE, Descriptor, write_artifact
from imagegen.oci.layout import INDEX_FILE, Layout, index_entry, name_of
from imagegen.oci.registry import PushTarget, Reference

_NOUN, _FIX = "the mirror", "name a directory on a larger disk"


@dataclass(frozen=True)
class MirrorResult:
    """The number and size of the files of all listings in the mirror, and the number of new files."""

    files: int
    size: int  # bytes
    added: int  # files
    names: tuple[str, ...]


def fill(at: Path | Reference, listings: Sequence[MirrorArtifact], context: Context) -> MirrorResult:
    """Copy the files of the listings from the store, and then the listings, which so never name a missing file.

    Existing files are not copied again. Raises StoreError, PublishError.
    """
    blobs = tuple(dict.fromkeys(blob for listing in listings for _, blob in listing.files))
    context.store.write(EMPTY_CONTENT)
    label = f"mirroring {counted(len(blobs), 'file')}"
    with context.progress.meter(label, sum(blob.size for blob in blobs)) as meter:
        if isinstance(at, Path):
            added = _into_directory(at, listings, blobs, context.store, meter)
        else:
            with Client(context.settings) as client:
                target = PushTarget(at, client, context.settings)
                target.reach()
                added = target.upload_all(blobs, context.store, meter).sent.blobs
                target.upload(EMPTY, context.store, meter)
                for listing in listings:
                    target.put(_manifest(listing), MANIFEST_TYPE, listing.name)
    return MirrorResult(len(blobs), sum(blob.size for blob in blobs), added, tuple(item.name for item in listings))


def _manifest(listing: MirrorArtifact) -> bytes:
    return write_artifact(listing.kind, listing.files, {})


def _into_directory(
    at: Path, listings: Sequence[MirrorArtifact], blobs: Sequence[Descriptor], store: Store, meter: Meter
) -> int:
    layout = Layout(at)
    with disk.explained(at, _NOUN, _FIX):
        layout.create()
        absent = [blob for blob in blobs if not _has(layout, blob)]
        disk.require(at, _NOUN, _FIX, sum(blob.size for blob in absent))
        meter.advance(sum(blob.size for blob in blobs) - sum(blob.size for blob in absent))
        for blob in absent:
            _copy(store, blob.digest, layout)
            meter.advance(blob.size)
        _copy(store, EMPTY.digest, layout)
        with temporary.locked(at / ".imagegen-lock"):
            _list(layout, {listing.name: _write_manifest(store, listing, layout) for listing in listings})
    return len(absent)


def _has(layout: Layout, blob: Descriptor) -> bool:
    path = layout.path(blob.digest)
    return path.is_file() and path.stat().st_size == blob.size


def _write_manifest(store: Store, listing: MirrorArtifact, layout: Layout) -> dict[str, Any]:
    """Write the listing's manifest, and return its entry in the index."""
    manifest = _manifest(listing)
    digest = store.write(manifest)
    _copy(store, digest, layout)
    return index_entry(listing.name, digest, len(manifest))


def _copy(store: Store, digest: str, layout: Layout) -> None:
    """Copy a blob atomically. It is not linked, so that changes of the mirror do not change the store."""
    with store.open(digest) as source:
        data.write(layout.path(digest), source)


def _list(layout: Layout, added: dict[str, dict[str, Any]]) -> None:
    """Add or replace entries of the layout's index, by name. Raises StoreError for an invalid index."""
    try:
        entries = layout.entries() if (layout.root / INDEX_FILE).exists() else []
    except FetchError as error:
        raise StoreError(
            "the mirror cannot be extended",
            code="store-mirror-unwritable",
            where=Location(layout.root / INDEX_FILE),
            why=f"it is not the index of a mirror: {error.why}",
            fix="name another directory",
        ) from error
    layout.write_index([*(entry for entry in entries if name_of(entry) not in added), *added.values()])
