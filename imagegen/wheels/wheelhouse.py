"""The wheelhouse has compiled wheels in the store, each under the key of its inputs.

The file and its log are blobs, and an entry of the store describes them. `store gc` keeps them, `wheels gc` removes
them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator
from pathlib import Path

from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.lock.builds import BuiltWheel, with_built_wheels
from imagegen.lock.environments import with_locks
from imagegen.lock.model import Lock, LockedBuild
from imagegen.oci.documents import is_digest

WHEELS = Cache("wheel", BuiltWheel)


def known(store: Store, key: str) -> BuiltWheel | None:
    """Return the wheel with this key; None if there is none, or its file is gone or damaged."""
    wheel = WHEELS.get(store, key)
    return wheel if wheel and store.intact(wheel.digest, wheel.size) else None


def local_wheels(lock: Lock, store: Store) -> dict[str, BuiltWheel]:
    """Return the wheels of the lock's builds that the local wheelhouse has, by package."""
    wheels = {build.name: known(store, build.key) for build in lock.builds}
    return {name: wheel for name, wheel in wheels.items() if wheel}


def missing_builds(lock: Lock, store: Store) -> list[LockedBuild]:
    """Return the lock's builds whose wheels the local wheelhouse lacks."""
    local = local_wheels(lock, store)
    return [build for build in lock.builds if build.name not in local]


def with_local_wheels(lock: Lock, store: Store) -> tuple[Lock, list[LockedBuild]]:
    """Return (lock with built wheels, []) if the wheelhouse has them all, else (lock unchanged, missing builds).

    If the lock has several environments, each of their locks is changed by itself.
    """
    locks, missing = [], []
    for environment in lock.environments:
        lacking = missing_builds(environment.lock, store)
        locks.append(
            environment.lock if lacking else with_built_wheels(environment.lock, local_wheels(environment.lock, store))
        )
        missing += lacking
    return with_locks(lock, locks), missing


def keep(store: Store, wheel: BuiltWheel) -> None:
    """Record a wheel whose file is in the store. The first of a key stays, since it may be locked somewhere."""
    with store.lock(f"wheel-{wheel.key}"):
        if known(store, wheel.key) is None:
            WHEELS.put(store, wheel.key, wheel)


def every(store: Store) -> Iterator[BuiltWheel]:
    """Return all wheels that are kept, by name, version and key, without those that have lost their file.

    Listing does not count as a use of a wheel: see `unused`.
    """
    wheels = [wheel for key in WHEELS.keys(store) if (wheel := WHEELS.get(store, key)) and _whole(store, wheel)]
    yield from sorted(wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.key))


def contents(store: Store) -> dict[str, str]:
    """Return digest -> description of all blobs of the wheelhouse. This does not count as a use of a wheel."""
    blobs: dict[str, str] = {}
    for wheel in filter(None, (WHEELS.get(store, key) for key in WHEELS.keys(store))):
        blobs[wheel.digest] = f"the wheel {wheel.filename}"
        if log := log_of(wheel):
            blobs[log] = f"the log of {wheel.filename}"
    return blobs


def log_of(wheel: BuiltWheel) -> str | None:
    """Return the digest of the build's log, if the record names one."""
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
