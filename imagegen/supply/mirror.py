"""Copy all files that locks name to a mirror: `core.registry.layout` describes its form and its readers."""

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

FILES = "application/vnd.imagegen.mirror.files.v1"  # artifact that lists what a lock names
_FILE = "application/vnd.imagegen.mirror.file.v1"


@dataclass(frozen=True)
class MirrorArtifact:
    """An artifact to be: its name in the mirror, its type, and its files by what they are called."""

    name: str
    kind: str
    files: tuple[tuple[str, Descriptor], ...]  # sorted by digest, each once


def collect(locked: Lock, recipes: Mapping[str, Recipe], context: Context) -> None:
    """Bring all that `listings` names into the store. Raises as `lock.fetch`, `lock.fetch_sources` and base.fetch do.

    `recipes` are the cell's, by package.
    """
    inputs.fetch(replace(locked, wheels=(locked.uv, *_indexed(locked))), context)
    if locked.builds:
        fetch_sources(locked.builds, recipes, context)
    if _made(locked):
        inputs.fetch_parts(locked, context)
    foundation.fetch(locked.interpreter, context)
    base.fetch_files(locked.base, context)
    if locked.added:
        base.fetch_packages(locked.added, context)
    if locked.bytecode_base:
        base.fetch_files(locked.bytecode_base, context)


def listings(locked: Lock, store: Store) -> tuple[MirrorArtifact, ...]:
    """Return the content of a mirror for a lock: its files, and separately its Debian packages, which are trusted more.

    All of it is in the store: a lock does not have the size of an interpreter's archive, or of all wheels.
    """
    files = _files(locked, store)
    if archive := locked.interpreter.file:
        files[archive.digest] = (archive.filename, store.path(archive.digest).stat().st_size)
    name = f"{locked.cell}-{inputs_hash(locked).removeprefix('sha256:')[:12]}"
    found = [MirrorArtifact(name, FILES, _sorted(files))]
    for each in (locked.base, locked.added, locked.bytecode_base):
        if each and each.debs:
            packages = {deb.digest: (deb.path.rpartition("/")[2], deb.size) for deb in each.debs}
            found.append(MirrorArtifact(listing(each.debs), PACKAGES, _sorted(packages)))
    return tuple(found)


def _files(locked: Lock, store: Store) -> dict[str, tuple[str, int]]:
    """Return digest -> name and size in bytes of all files but Debian packages.

    Of the project's own packages nothing is mirrored: a build takes them from the project. Of its copied files and
    patches the contents are, for a rebuild elsewhere.
    """
    sdists = [wheel.sdist for wheel in _made(locked) if wheel.sdist]
    wheels = [locked.uv, *_indexed(locked)]
    files = [wheel.fetched for wheel in wheels] + [each.file for each in sdists if each.file.index != LOCAL]
    files += [needed.file for sdist in sdists for needed in sdist.build_requires]
    files += [needed.file for build in locked.builds for needed in build.build_requires]
    files += [build.source for build in locked.builds if build.source.index != LOCAL]
    found = {file.digest: (file.filename, file.size or _size(file, store)) for file in files}
    found |= {
        project_file.digest: (project_file.path.rpartition("/")[2], project_file.size)
        for project_file in inputs.project_files(locked)
    }
    layers = enumerate(locked.base.content.layers, 1) if locked.base.content else ()
    return found | {layer.digest: (f"base-layer-{number}", layer.size) for number, layer in layers}


def _size(file: LockedFile, store: Store) -> int:
    """The size in bytes of a file that the store has and whose size the lock does not name."""
    return store.path(file.digest).stat().st_size


def _made(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if wheel.sdist]


def _indexed(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if not (wheel.sdist or wheel.build or wheel.file.index == LOCAL)]


def _sorted(files: Mapping[str, tuple[str, int]]) -> tuple[tuple[str, Descriptor], ...]:
    return tuple((name, Descriptor(_FILE, digest, size)) for digest, (name, size) in sorted(files.items()))


# Files of the store -> a mirror: a directory (an OCI image layout), or a repository of a registry.

_WHAT, _REMEDY = "the mirror", "name a directory on a larger disk"


@dataclass(frozen=True)
class Filled:
    """The result of a mirror run: what it holds of the listings, and how much of it is new."""

    files: int
    size: int  # bytes
    added: int  # files
    names: tuple[str, ...]


def fill(at: Path | Reference, listings: Sequence[MirrorArtifact], context: Context) -> Filled:
    """Copy the listings' files, all in the store, and then the listings: a broken copy lists nothing that is not there.

    What is there already stays. Raises StoreError, PublishError.
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
    return Filled(len(blobs), sum(blob.size for blob in blobs), added, tuple(each.name for each in listings))


def _manifest(listing: MirrorArtifact) -> bytes:
    return write_artifact(listing.kind, listing.files, {})


def _into_directory(
    at: Path, listings: Sequence[MirrorArtifact], blobs: Sequence[Descriptor], store: Store, meter: Meter
) -> int:
    layout = Layout(at)
    with disk.explained(at, _WHAT, _REMEDY):
        layout.create()
        absent = [blob for blob in blobs if not _has(layout, blob)]
        disk.require(at, _WHAT, _REMEDY, sum(blob.size for blob in absent))
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
    """Copy a blob, whole or not at all. No link: what is done to the mirror is not done to the store."""
    with store.open(digest) as source:
        data.write(layout.path(digest), source)


def _list(layout: Layout, added: dict[str, dict[str, Any]]) -> None:
    """Add entries to the layout's index, in place of those of the same name. Raises StoreError for a damaged one."""
    try:
        known = layout.entries() if (layout.root / INDEX_FILE).exists() else []
    except FetchError as error:
        raise StoreError(
            "the mirror cannot be added to",
            code="store-mirror-unwritable",
            where=Location(layout.root / INDEX_FILE),
            why=f"it is no mirror's list: {error.why}",
            fix="name another directory",
        ) from error
    layout.write_index([*(entry for entry in known if name_of(entry) not in added), *added.values()])
