"""The wheels of a lock's source builds that the local wheelhouse has; nothing is compiled or fetched."""

from __future__ import annotations

from imagegen.core.store import Store
from imagegen.plan.lock import builds
from imagegen.plan.lock.builds import BuiltWheel
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.wheels import wheelhouse


def missing_builds(lock: Lock, store: Store) -> list[LockedBuild]:
    """Return the lock's builds whose wheels the local wheelhouse lacks."""
    local = local_wheels(lock, store)
    return [build for build in lock.builds if build.name not in local]


def with_local_wheels(lock: Lock, store: Store) -> tuple[Lock, list[LockedBuild]]:
    """Return (lock with built wheels, []) if the wheelhouse has them all, else (lock unchanged, missing builds)."""
    missing = missing_builds(lock, store)
    return (lock if missing else builds.with_built_wheels(lock, local_wheels(lock, store))), missing


def local_wheels(lock: Lock, store: Store) -> dict[str, BuiltWheel]:
    """Return the wheels of the lock's builds that the local wheelhouse has, by package."""
    found = {build.name: wheelhouse.known(store, build.key) for build in lock.builds}
    return {name: wheel for name, wheel in found.items() if wheel}
