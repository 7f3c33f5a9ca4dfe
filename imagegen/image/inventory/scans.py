"""Export and import the scans of a lock's wheels and base as bytes, by the keys that all stores share.

With them, neither an audit nor the check for file conflicts needs the wheels.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor

from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache
from imagegen.image.inventory.cell_subject import SYSTEMS, system_key
from imagegen.image.inventory.module_sources import LOCK_MODULES, modules_key
from imagegen.image.layers import scan
from imagegen.lock.model import Lock

_AT_ONCE = 8


def known_scans(locked: Lock, store: Store) -> dict[str, bytes]:
    """Return the store's scans of the lock's wheels and base by key; equal scans are equal bytes on every machine."""
    scans = {key: cache.read(store, key) for cache, key in scan_keys(locked)}
    return {key: data for key, data in sorted(scans.items()) if data is not None}


def import_scans(locked: Lock, store: Store, keys: Container[str], bring: Callable[[str], bytes | None]) -> None:
    """Import the scans of the lock's wheels and base that are in `keys` and that the store lacks.

    `bring` returns the scan for a key, or None; its result is trusted and stored. Its exceptions propagate, and the
    scans imported before stay.
    """
    lacking = [(cache, key) for cache, key in scan_keys(locked) if key in keys and cache.get(store, key) is None]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="facts") as pool:
        fetched = pool.map(bring, [key for _, key in lacking])
        for (cache, key), data in zip(lacking, fetched, strict=True):
            if data is not None:
                cache.write(store, key, data)


def scan_keys(locked: Lock) -> Iterator[tuple[BlobCache, str]]:
    """Yield cache and key of every record that an audit of the cell reads."""
    for wheel in locked.distinct_wheels:
        yield scan.SCANS, scan.scan_key(wheel, locked.python)
    for environment in locked.environments:
        yield LOCK_MODULES, modules_key(environment.lock)
    yield SYSTEMS, system_key(locked)
