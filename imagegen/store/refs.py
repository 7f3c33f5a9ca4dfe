"""Names for images in the store: the layout's index.json, and exports as layouts of their own.

Source: OCI image-spec v1.1, image-layout.md (index.json, org.opencontainers.image.ref.name).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from imagegen.errors import StoreError
from imagegen.store.layout import LAYOUT_FILE, MANIFEST_TYPE, Store

_NAME = "org.opencontainers.image.ref.name"


def keep(store: Store, name: str, digest: str, size: int) -> None:
    """Point `name` at a manifest of the store; an image that is pointed at is never collected."""
    with store.lock("index"):
        others = [entry for entry in _entries(store) if entry.get("annotations", {}).get(_NAME) != name]
        store.replace("index.json", _index([*others, _descriptor(name, digest, size)]))


def images(store: Store) -> dict[str, str]:
    """Name -> manifest digest of every image that `keep` pointed at."""
    return {entry["annotations"][_NAME]: entry["digest"] for entry in _entries(store)}


def export(store: Store, digest: str, directory: Path, name: str) -> None:
    """Write the image as an OCI image layout to a new directory, by hard links where the disk allows.

    The directory appears complete or not at all. Raises StoreError when it exists and is no empty directory, when it
    cannot be written, and when a blob is absent or damaged.
    """
    require_new(directory)
    directory = directory.absolute()
    manifest = store.read(digest)
    parts = json.loads(manifest)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}-"))
        try:
            blobs = fresh / "blobs" / "sha256"
            blobs.mkdir(parents=True)
            for part in (digest, parts["config"]["digest"], *(layer["digest"] for layer in parts["layers"])):
                store.verify(part)
                _place(store.path(part), blobs / store.path(part).name)
            (fresh / "oci-layout").write_bytes(LAYOUT_FILE)
            (fresh / "index.json").write_bytes(_index([_descriptor(name, digest, len(manifest))]))
            fresh.chmod(0o755)
            if directory.exists():
                directory.rmdir()
            fresh.rename(directory)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    except OSError as error:
        raise StoreError("the output directory cannot be written", where=str(directory), why=error.strerror) from error


def require_new(directory: Path) -> None:
    """Raise StoreError when something is there already: cheap to ask before long work."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise StoreError("the output directory is not empty", where=str(directory), fix="name another, or remove it")


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        if not target.exists():  # one layer may stand twice in an image
            shutil.copyfile(source, target)


def _entries(store: Store) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((store.root / "index.json").read_bytes())["manifests"]
    return entries


def _descriptor(name: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": MANIFEST_TYPE, "digest": digest, "size": size, "annotations": {_NAME: name}}


def _index(entries: list[dict[str, Any]]) -> bytes:
    ordered = sorted(entries, key=lambda entry: str(entry["annotations"][_NAME]))
    return json.dumps({"schemaVersion": 2, "manifests": ordered}, indent=1).encode()
