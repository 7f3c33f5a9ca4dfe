"""Names for images in the store: the layout's index.json, and exports as layouts of their own.

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

from imagegen.core.errors import FetchError, StoreError
from imagegen.core.oci.layout import INDEX_FILE, Layout, index_entry, name_of, write_index
from imagegen.core.oci.types import read_manifest
from imagegen.core.store import disk
from imagegen.core.store.layout import Store

_UNFINISHED = ".imagegen-export-"
_OUTPUT, _REMEDY = "the output directory", "name another one"


def keep(store: Store, name: str, digest: str, size: int) -> None:
    """Point `name` at a manifest of the store; an image that is pointed at is never collected.

    Its layers need not be here, where a registry has them; what is here of it stays.
    """
    with store.lock("index"):
        others = [entry for entry in _entries(store) if _name(entry) != name]
        store.replace(INDEX_FILE, write_index([*others, index_entry(name, digest, size)]))


def images(store: Store) -> dict[str, str]:
    """Name -> manifest digest of every image that `keep` pointed at."""
    return {_name(entry): entry["digest"] for entry in _entries(store)}


def parts(store: Store, digest: str) -> dict[str, str]:
    """Digest -> what it is, of all that the image with this manifest is made of; what its layers unpack to, too.

    Raises StoreError when the manifest or its config is absent or damaged, FetchError for a manifest of another kind.
    """
    manifest = read_manifest(store.read(digest), digest)
    found = {digest: "manifest", manifest.config.digest: "config"}
    config = json.loads(store.read(manifest.config.digest))
    names = [str(entry.get("created_by", "")).removeprefix("imagegen: ") for entry in config.get("history", ())]
    for index, layer in enumerate(manifest.layers):
        found[layer.digest] = f"layer {names[index] if len(names) == len(manifest.layers) else index + 1}"
    unpacked = config.get("rootfs", {}).get("diff_ids", ())
    return found | {
        diff_id: f"{name}, unpacked" for diff_id, name in zip(unpacked, list(found.values())[2:], strict=False)
    }


def export(store: Store, digest: str, directory: Path, name: str) -> None:
    """Write the image as an OCI image layout to a new directory, by hard links where the disk allows.

    The directory appears complete or not at all. Raises StoreError when it exists and is no empty directory, when it
    cannot be written, and when a blob is absent or damaged.
    """
    require_new(directory)
    manifest = store.read(digest)
    blobs = {blob.digest: blob.size for blob in read_manifest(manifest, digest).blobs}
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
        layout.write_index([index_entry(name, digest, len(manifest))])


@contextmanager
def filling(directory: Path, needed: int = 0) -> Iterator[Path]:
    """A folder beside `directory` that takes its place at the end: it appears complete or not at all.

    `needed` is how many bytes will be written, as far as that is known. Raises StoreError when `directory` exists and
    is no empty directory, and when it cannot be written.
    """
    require_new(directory)
    directory = directory.absolute()
    with disk.explained(directory, _OUTPUT, _REMEDY, needed):
        directory.parent.mkdir(parents=True, exist_ok=True)
        for left in directory.parent.glob(f"{_UNFINISHED}*"):
            disk.remove(left)  # by a killed build
        with disk.new_directory(directory.parent, _UNFINISHED) as fresh:
            yield fresh
            fresh.chmod(0o755)
            if directory.exists():
                directory.rmdir()
            fresh.rename(directory)


def require_new(directory: Path) -> None:
    """Raise StoreError when something is there already: cheap to ask before long work."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise StoreError(
            "the output directory is not empty",
            code="store-output-not-empty",
            where=str(directory),
            fix="name another, or remove it",
        )


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _entries(store: Store) -> list[dict[str, Any]]:
    try:
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
