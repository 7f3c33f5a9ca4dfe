"""The wheelhouse: compiled wheels in the store by the key of their inputs; and the data of the wheel finder."""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from imagegen.core.oci.types import is_digest
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.plan.lock.builds import BuiltWheel


class WheelSource(StrEnum):
    """The source of a candidate, in the finder's order."""

    WHEELHOUSE = "wheelhouse"  # built or pulled here, under its complete key
    TEAM = "team wheelhouse"  # a registry's, under the same key
    LINKS = "find-links"  # directories and pages that the user names for pip
    INDEX = "index"  # the index itself has a wheel
    CATALOGUE = "catalogue"  # release assets that the data under wheels/ know
    SOURCE = "source build"


@dataclass(frozen=True)
class Candidate:
    """One wheel that may serve, or the source build. `fits` with the reason, either way, in one clause."""

    place: WheelSource
    filename: str  # of a source build: the source's
    where: str  # address, file, registry reference, or recipe
    fits: bool
    reason: str
    sha256: str | None = None  # None: not published, and the file was not fetched
    size: int | None = None  # bytes


@dataclass(frozen=True)
class Offer:
    """A file that a place offers, with the attributes that the place states."""

    filename: str
    url: str
    sha256: str | None = None
    size: int | None = None  # bytes


# The wheelhouse: wheels that a compiler made, in the store, each under the key of everything that decides it.
#
# The file is a blob, what it is a record of the store, and so is the log that the record names; `store gc` leaves them
# alone, `wheels gc` does not.

WHEELS = Cache("wheel", BuiltWheel)


def known(store: Store, key: str) -> BuiltWheel | None:
    """The wheel with this key; None where it was never kept, or its file is gone or damaged."""
    found = WHEELS.get(store, key)
    return found if found and store.intact(found.digest, found.size) else None


def keep(store: Store, wheel: BuiltWheel) -> None:
    """Remember a wheel whose file is in the store already. The first of a key stays: it may be locked somewhere."""
    with store.lock(f"wheel-{wheel.key}"):
        if known(store, wheel.key) is None:
            WHEELS.put(store, wheel.key, wheel)


def every(store: Store) -> Iterator[BuiltWheel]:
    """Return all wheels that are kept, by name, version and key, without those that have lost their file.

    Listing does not count as a use of a wheel: see `unused`.
    """
    found = [wheel for key in WHEELS.keys(store) if (wheel := WHEELS.get(store, key)) and _whole(store, wheel)]
    yield from sorted(found, key=lambda wheel: (wheel.name, wheel.version, wheel.key))


def contents(store: Store) -> dict[str, str]:
    """Digest -> what it is, of all blobs that the kept wheels are made of; asking does not count as using them."""
    found: dict[str, str] = {}
    for wheel in filter(None, (WHEELS.get(store, key) for key in WHEELS.keys(store))):
        found[wheel.digest] = f"the wheel {wheel.filename}"
        if log := log_of(wheel):
            found[log] = f"the log of {wheel.filename}"
    return found


def log_of(wheel: BuiltWheel) -> str | None:
    """The digest of the build's log, where the record names one."""
    log = wheel.record.get("log")
    return log if isinstance(log, str) and is_digest(log) else None


def forget(store: Store, key: str) -> None:
    """Remove a wheel's entry; the next collection of the store removes its file."""
    WHEELS.forget(store, key)


def unused(store: Store, wheel: BuiltWheel, now: float) -> float:
    """Return for how many seconds the wheel's file was not used; 0 if it is gone."""
    try:
        return max(0.0, now - store.path(wheel.digest).stat().st_mtime)
    except FileNotFoundError:
        return 0.0


def removable(store: Store, wheels: Collection[BuiltWheel]) -> int:
    """Bytes that go when all of these are removed: of files that no other wheel has."""
    keys = {wheel.key for wheel in wheels}
    needed = {digest for other in every(store) if other.key not in keys for digest in _files(other)}
    digests = {digest for wheel in wheels for digest in _files(wheel)} - needed
    return sum(_size(store.path(digest)) for digest in digests)


def remove(store: Store, wheel: BuiltWheel) -> int:
    """Remove a wheel, its file and its log; returns the number of bytes freed. Another key may share a file."""
    forget(store, wheel.key)
    needed = {digest for other in every(store) for digest in _files(other)}
    with store.explained(), store.gate(fcntl.LOCK_EX):
        return sum(_unlink(store.path(digest)) for digest in _files(wheel) - needed)


def _files(wheel: BuiltWheel) -> set[str]:
    log = log_of(wheel)
    return {wheel.digest, *([log] if log else [])}


def _whole(store: Store, wheel: BuiltWheel) -> bool:
    try:
        return store.path(wheel.digest).stat().st_size == wheel.size
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _unlink(path: Path) -> int:
    size = _size(path)
    path.unlink(missing_ok=True)
    return size
