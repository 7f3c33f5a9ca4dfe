"""Copy all files that locks name to a mirror. `core.registry.layout` describes its format and its readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imagegen.core import data, temporary
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, Location, StoreError
from imagegen.core.net import Client
from imagegen.core.oci import (
    EMPTY,
    EMPTY_CONTENT,
    INDEX_FILE,
    MANIFEST_TYPE,
    Descriptor,
    Layout,
    index_entry,
    name_of,
    write_artifact,
)
from imagegen.core.progress import Meter
from imagegen.core.registry import PushTarget, Reference
from imagegen.core.store import Store, disk
from imagegen.core.text import counted
from imagegen.image import base, inputs
from imagegen.image.base.fetch import PACKAGES, listing
from imagegen.plan.lock import fetch_sources, foundation, inputs_hash
from imagegen.plan.lock.model import LOCAL, Lock, LockedFile, LockedWheel
from imagegen.plan.matrix.recipe import Recipe

FILES = "application/vnd.imagegen.mirror.files.v1"  # artifact that lists the files of a lock
_FILE = "application/vnd.imagegen.mirror.file.v1"


@dataclass(frozen=True)
class MirrorArtifact:
    """An artifact of a mirror, with its name, its type, and its files by name."""

    name: str
    kind: str
    files: tuple[tuple[str, Descriptor], ...]  # sorted by digest, each once


def collect(locked: Lock, recipes: Mapping[str, Recipe], context: Context) -> None:
    """Fetch all files of `listings` into the store. `recipes` are the cell's, by package.

    Raises the errors of `lock.fetch`, `lock.fetch_sources` and `base.fetch`.
    """
    inputs.fetch(replace(locked, wheels=(locked.uv, *_indexed(locked))), context)
    if locked.builds:
        fetch_sources(locked.builds, recipes, context)
    if _from_sdists(locked):
        inputs.fetch_parts(locked, context)
    foundation.fetch(locked.interpreter, context)
    base.fetch_files(locked.base, context)
    if locked.added:
        base.fetch_packages(locked.added, context)
    if locked.bytecode_base:
        base.fetch_files(locked.bytecode_base, context)


def listings(locked: Lock, store: Store) -> tuple[MirrorArtifact, ...]:
    """Return the artifacts of a mirror for a lock. Debian packages are separate, because they are trusted more.

    The files must be in the store, because a lock does not have the size of an interpreter's archive or of all wheels.
    """
    files = _files(locked, store)
    if archive := locked.interpreter.file:
        files[archive.digest] = (archive.filename, store.path(archive.digest).stat().st_size)
    name = f"{locked.cell}-{inputs_hash(locked).removeprefix('sha256:')[:12]}"
    artifacts = [MirrorArtifact(name, FILES, _sorted(files))]
    for locked_packages in (locked.base, locked.added, locked.bytecode_base):
        if locked_packages and locked_packages.debs:
            packages = {deb.digest: (deb.path.rpartition("/")[2], deb.size) for deb in locked_packages.debs}
            artifacts.append(MirrorArtifact(listing(locked_packages.debs), PACKAGES, _sorted(packages)))
    return tuple(artifacts)


def _files(locked: Lock, store: Store) -> dict[str, tuple[str, int]]:
    """Return digest -> name and size in bytes of all files but Debian packages.

    The project's packages are not mirrored, since a build takes them from the project. The contents of its copied files
    and patches are mirrored, for a rebuild on another machine.
    """
    sdists = [wheel.sdist for wheel in _from_sdists(locked) if wheel.sdist]
    wheels = [locked.uv, *_indexed(locked)]
    files = [wheel.fetched for wheel in wheels] + [sdist.file for sdist in sdists if sdist.file.index != LOCAL]
    files += [wheel.file for sdist in sdists for wheel in sdist.build_requires]
    files += [wheel.file for build in locked.builds for wheel in build.build_requires]
    files += [build.source for build in locked.builds if build.source.index != LOCAL]
    sizes = {file.digest: (file.filename, file.size or _size(file, store)) for file in files}
    sizes |= {
        project_file.digest: (project_file.path.rpartition("/")[2], project_file.size)
        for project_file in inputs.project_files(locked)
    }
    layers = enumerate(locked.base.content.layers, 1) if locked.base.content else ()
    return sizes | {layer.digest: (f"base-layer-{number}", layer.size) for number, layer in layers}


def _size(file: LockedFile, store: Store) -> int:
    """Return the size in bytes of a file in the store whose size the lock does not name."""
    return store.path(file.digest).stat().st_size


def _from_sdists(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if wheel.sdist]


def _indexed(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if not (wheel.sdist or wheel.build or wheel.file.index == LOCAL)]


def _sorted(files: Mapping[str, tuple[str, int]]) -> tuple[tuple[str, Descriptor], ...]:
    return tuple((name, Descriptor(_FILE, digest, size)) for digest, (name, size) in sorted(files.items()))


# Copy files of the store to a mirror, which is a directory (an OCI image layout) or a repository of a registry.

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
