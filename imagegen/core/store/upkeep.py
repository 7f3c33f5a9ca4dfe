"""Maintenance of a store: check every blob, collect unneeded ones, measure its size."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from imagegen.core import temporary
from imagegen.core.deferred import dataclass
from imagegen.core.errors import FetchError, StoreError
from imagegen.core.progress import Progress
from imagegen.core.store.images import images, parts
from imagegen.core.store.layout import DamagedError, Store
from imagegen.oci.documents import is_digest

# Whatever was used within this many seconds stays: a build that runs now may need it.
YOUNG = 24 * 3600


@dataclass(frozen=True)
class Sizes:
    """Bytes on disk, by purpose."""

    blobs: int
    rootfs: int
    records: int
    unfinished: int

    @property
    def total(self) -> int:
        return self.blobs + self.rootfs + self.records + self.unfinished


def blobs(store: Store) -> Iterator[str]:
    """Return every blob's digest, sorted. Other files there, as NFS leaves some, are ignored."""
    for path in sorted((store.root / "blobs" / "sha256").iterdir()):
        if is_digest(digest := f"sha256:{path.name}"):
            yield digest


def check(store: Store, progress: Progress, *, repair: bool) -> list[str]:
    """Read every blob; the digests of the damaged ones, which are removed with `repair`: then they are made again."""
    from concurrent.futures import ThreadPoolExecutor  # late: few commands check the store

    all_blobs = list(blobs(store))
    sizes = {digest: _size(store.path(digest)) for digest in all_blobs}

    def damaged(digest: str) -> bool:
        try:
            store.verify(digest, keep=not repair)
        except DamagedError:
            return True
        except StoreError:  # collected meanwhile
            return False
        finally:
            meter.advance(sizes[digest])
        return False

    label = f"checking {len(all_blobs)} blobs"
    with progress.meter(label, sum(sizes.values())) as meter, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [digest for digest, bad in zip(all_blobs, pool.map(damaged, all_blobs), strict=True) if bad]


def sizes(store: Store) -> Sizes:
    """Return how much disk the store takes. A blob that is linked into another folder counts here all the same."""
    return Sizes(*(_tree(store.root / name) for name in ("blobs", "rootfs", "records", "tmp")))


def collect(store: Store, required: Iterable[str], now: float | None = None) -> int:
    """Remove blobs, unpacked bases and unfinished downloads that are not needed and were not used for a day.

    `required` are digests to keep (of wheels, packages, layers, unpacked bases); the parts of the named images are kept
    too. Builds may run meanwhile: a file that one of them decides to use counts as used. Returns the number of bytes
    freed.
    """
    now = time.time() if now is None else now
    keep = set(required)
    for digest in images(store).values():
        with suppress(FetchError, StoreError):  # of an incomplete image, only blobs of others are kept
            keep |= parts(store, digest).keys()
    freed = 0
    for path in [*map(store.path, blobs(store)), *(store.root / "rootfs").iterdir()]:
        if f"sha256:{path.name}" not in keep:
            freed += _remove(store, path, now)
    for path in (store.root / "tmp").glob(f"{temporary.PART}*"):
        size = _size(path)
        if is_unused(path, now) and temporary.remove(path):
            freed += size
    return freed


def _remove(store: Store, path: Path, now: float) -> int:
    """Remove a file or a tree unless it is in use; returns its bytes.

    A tree takes time, so it loses its name first: a killed collector leaves no part of it that a build would use.
    """
    size = _size(path) + _tree(path)
    with store.temporary_directory("collected") as aside, store.gate(fcntl.LOCK_EX):
        if not is_unused(path, now):
            return 0
        path.rename(aside / path.name)
    return size


def is_unused(path: Path, now: float) -> bool:
    """Return whether the path exists and was not used for a day."""
    try:
        return now - path.lstat().st_mtime >= YOUNG
    except FileNotFoundError:
        return False


def _tree(root: Path) -> int:
    return sum(_size(Path(folder, name)) for folder, _, names in os.walk(root) for name in names)


def _size(path: Path) -> int:
    """Return the bytes on disk; 0 for a directory, and for a file that a build has removed since it was listed."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_blocks * 512
