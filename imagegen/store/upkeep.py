"""What keeps a store healthy: check every blob, collect what nothing needs, say how large it is."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagegen.errors import StoreError
from imagegen.store.layout import Store, is_digest

# Files younger than this may belong to a build that runs now: its blobs have no manifest yet.
YOUNG = 24 * 3600


@dataclass(frozen=True)
class Damage:
    """A blob whose bytes are not its digest's."""

    digest: str
    path: Path


@dataclass(frozen=True)
class Sizes:
    """Bytes on disk, by what they are for."""

    blobs: int
    rootfs: int
    records: int
    unfinished: int

    @property
    def total(self) -> int:
        return self.blobs + self.rootfs + self.records + self.unfinished


def blobs(store: Store) -> Iterator[str]:
    """Every blob's digest, sorted. What else lies there, as NFS leaves it, is no business of ours."""
    for path in sorted((store.root / "blobs" / "sha256").iterdir()):
        if is_digest(digest := f"sha256:{path.name}"):
            yield digest


def check(store: Store, *, repair: bool) -> list[Damage]:
    """Read every blob. With `repair`, damaged ones are removed, so that the next build makes or fetches them again."""
    damaged = []
    for digest in blobs(store):
        try:
            store.verify(digest)
        except StoreError:
            damaged.append(Damage(digest, store.path(digest)))
            if repair:
                store.path(digest).unlink(missing_ok=True)
    return damaged


def sizes(store: Store) -> Sizes:
    """How much disk the store takes. A blob that is linked into another folder counts here all the same."""
    return Sizes(*(_tree(store.root / name) for name in ("blobs", "rootfs", "records", "tmp")))


def collect(store: Store, wanted: Iterable[str], now: float | None = None) -> int:
    """Remove blobs, unpacked bases and unfinished files that nothing wants and that are older than a day.

    `wanted` are digests (of manifests, wheels, packages, unpacked bases); what a wanted manifest names is wanted too.
    Returns the bytes that were freed.
    """
    now = time.time() if now is None else now
    keep = _closure(store, wanted)
    freed = 0
    for digest in list(blobs(store)):
        if digest not in keep:
            freed += _remove(store.path(digest), now)
    for folder in ("rootfs", "tmp"):
        for path in (store.root / folder).iterdir():
            if f"sha256:{path.name.partition('.')[0]}" not in keep:
                freed += _remove(path, now)
    return freed


def _closure(store: Store, wanted: Iterable[str]) -> set[str]:
    keep = set(wanted)
    for digest in list(keep):
        # Manifests are small; nothing else that is wanted by name names other blobs.
        if store.has(digest) and store.path(digest).stat().st_size < 1 << 20:
            try:
                manifest = json.loads(store.read(digest))
            except (ValueError, StoreError):
                continue
            if isinstance(manifest, dict) and isinstance(manifest.get("layers"), list):
                parts = [manifest["config"], *manifest["layers"]]
                keep.update(part["digest"] for part in parts)
    return keep


def _remove(path: Path, now: float) -> int:
    """Remove a file or a tree unless it is young; returns its bytes. A build may have taken it away by now."""
    try:
        if now - path.lstat().st_mtime < YOUNG:
            return 0
    except FileNotFoundError:
        return 0
    size = _size(path) + _tree(path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return size


def _tree(root: Path) -> int:
    return sum(_size(Path(folder, name)) for folder, _, names in os.walk(root) for name in names)


def _size(path: Path) -> int:
    """Bytes on disk; 0 for a directory, and for what a build has taken away since it was listed."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_blocks * 512
