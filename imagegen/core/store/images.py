"""The images of a store: their names (the layout's index.json), and exports as layouts of their own.

Source: OCI image-spec v1.1, image-layout.md (index.json, org.opencontainers.image.ref.name).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imagegen.core import temporary
from imagegen.core.errors import FetchError, StoreError
from imagegen.core.store import disk
from imagegen.core.store.layout import Store
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE, Descriptor, read_images, read_manifest
from imagegen.oci.layout import INDEX_FILE, Layout, index_entry, name_of, write_index

_OUTPUT, _REMEDY = "the output directory", "name another one"


def keep(store: Store, name: str, digest: str, size: int) -> None:
    """Point `name` at a manifest of the store; an image that is pointed at is never collected.

    Its layers need not be here if a registry has them; its blobs that are here stay.
    """
    with store.lock("index"):
        entries = [entry for entry in _entries(store) if _name(entry) != name]
        store.replace(INDEX_FILE, write_index([*entries, index_entry(name, digest, size)]))


def images(store: Store) -> dict[str, str]:
    """Name -> manifest digest of every image that `keep` pointed at."""
    return {_name(entry): entry["digest"] for entry in _entries(store)}


def parts(store: Store, digest: str) -> dict[str, str]:
    """Return the kind of each blob of the image with this manifest, and of its unpacked layers, by digest.

    Raises StoreError when the manifest or its config is absent or damaged, FetchError for a manifest of another kind.
    """
    manifest = read_manifest(store.read(digest), digest)
    media = {digest: "manifest", manifest.config.digest: "config"}
    config = json.loads(store.read(manifest.config.digest))
    names = [str(entry.get("created_by", "")).removeprefix("imagegen: ") for entry in config.get("history", ())]
    for index, layer in enumerate(manifest.layers):
        media[layer.digest] = f"layer {names[index] if len(names) == len(manifest.layers) else index + 1}"
    unpacked = config.get("rootfs", {}).get("diff_ids", ())
    return media | {
        diff_id: f"{name}, unpacked" for diff_id, name in zip(unpacked, list(media.values())[2:], strict=False)
    }


def find_whole(store: Store, digest: str) -> Descriptor | None:
    """Return the manifest of an image of which the store has all blobs, with their sizes; else None.

    All count as used now, and the collector keeps them for a day.
    """
    if not store.has(digest):
        return None
    try:
        content = store.read(digest)
        blobs = read_manifest(content, digest).blobs
    except (FetchError, StoreError):
        return None
    whole = all(store.has(blob.digest, blob.size) for blob in blobs)
    return Descriptor(MANIFEST_TYPE, digest, len(content)) if whole else None


def export(store: Store, digest: str, directory: Path, name: str) -> None:
    """Write an image, or an index with its images, as an OCI layout to a new directory, by hard links where possible.

    The directory appears complete or not at all. Raises StoreError when it exists and is not an empty directory, when
    it cannot be written, and when a blob is absent or damaged.
    """
    require_new(directory)
    top = store.read(digest)
    nested = read_images(top, MANIFEST_TYPE, digest)
    blobs = {manifest.digest: manifest.size for _, manifest in nested or ()}
    for manifest in blobs.copy() if nested else (digest,):
        blobs |= {blob.digest: blob.size for blob in read_manifest(store.read(manifest), manifest).blobs}
    lacking = [part for part, size in blobs.items() if not store.intact(part, size)]
    if lacking:
        raise StoreError(
            f"{len(lacking)} blobs of the image {digest} were missing or damaged",
            code="store-blobs-missing",
            where=str(store.root),
            why=", ".join(lacking),
            fix="run the same command again, if it builds; `imagegen build` makes layers that only a registry has",
        )
    with filling(directory, sum(blobs.values())) as fresh:
        layout = Layout(fresh)
        layout.create()
        if fresh.stat().st_dev != store.root.stat().st_dev:
            disk.require(directory, _OUTPUT, _REMEDY, sum(blobs.values()))
        for part in (digest, *blobs):
            _place(store.path(part), layout.path(part))
        kind = INDEX_TYPE if nested else MANIFEST_TYPE
        layout.write_index([index_entry(name, digest, len(top), kind)])


@contextmanager
def filling(directory: Path, needed: int = 0) -> Iterator[Path]:
    """Yield a folder next to `directory` that takes its place at the end, complete or not at all.

    `needed` is how many bytes will be written, as far as that is known. Raises StoreError when `directory` exists and
    is not an empty directory, and when it cannot be written.
    """
    require_new(directory)
    directory = directory.absolute()
    with _unfinished(directory, needed) as fresh:
        yield fresh
        fresh.chmod(0o755)
        if directory.exists():
            directory.rmdir()
        fresh.rename(directory)


@contextmanager
def filling_file(file: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which becomes `file` at the end, complete or not at all.

    Raises StoreError when `file` exists, and when it cannot be written.
    """
    require_new_file(file)
    file = file.absolute()
    with _unfinished(file) as fresh:
        yield fresh / file.name
        with (fresh / file.name).open("rb") as written:
            os.fsync(written.fileno())
        (fresh / file.name).rename(file)


@contextmanager
def _unfinished(output: Path, needed: int = 0) -> Iterator[Path]:
    with (
        disk.explained(output, _OUTPUT, _REMEDY, needed),
        disk.made_for(output),
        temporary.temporary_directory(output.parent) as fresh,
    ):
        yield fresh


def require_new_file(file: Path) -> None:
    """Raise StoreError when something is there already: cheap to ask before long work."""
    if file.is_symlink() or file.exists():
        raise StoreError(
            "the output file exists already",
            code="store-output-exists",
            where=str(file),
            fix="name another, or remove it",
        )


def require_new(directory: Path) -> None:
    """Raise StoreError when something is there already: cheap to ask before long work."""
    fix = "name another, or remove it"
    if directory.is_dir() and any(directory.iterdir()):
        raise StoreError(
            "the output directory is not empty", code="store-output-not-empty", where=str(directory), fix=fix
        )
    if directory.exists() and not directory.is_dir():
        raise StoreError("the output directory is a file", code="store-output-is-file", where=str(directory), fix=fix)


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _entries(store: Store) -> list[dict[str, Any]]:
    try:
        with store.explained():
            return Layout(store.root).entries()
    except FetchError as error:
        raise StoreError(
            "the store's list of images is damaged",
            code="store-index-damaged",
            where=str(store.root / INDEX_FILE),
            why=error.why,
            fix="remove it; builds name their images in it again",
        ) from error


def _name(entry: dict[str, Any]) -> str:
    """Return the image's name; its digest where another program put it here without one."""
    return name_of(entry) or str(entry["digest"])
