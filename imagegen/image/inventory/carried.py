"""Export and import of scans: a store's scans of a cell's wheels and base as bytes, by the keys under which another
store keeps them.

With them, neither an audit nor the check for file conflicts needs the wheels.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor

from imagegen.core.store import Store, kept
from imagegen.image.inventory import cell
from imagegen.image.layers import watch
from imagegen.plan.lock.model import Lock

_AT_ONCE = 8


def known(locked: Lock, store: Store) -> dict[str, bytes]:
    """Return the store's scans of the lock's wheels and base by key; the same scans give the same bytes on every
    machine.
    """
    found = {key: kept.recall(store, kind, key) for kind, key in _keys(locked)}
    return {key: data for key, data in sorted(found.items()) if data is not None}


def take(locked: Lock, store: Store, named: Container[str], bring: Callable[[str], bytes | None]) -> None:
    """Import the scans of the lock's wheels and base that are in `named` and that the store lacks.

    `bring` returns the scan for a key, or None; its result is trusted and stored. Its exceptions propagate, and the
    scans imported before stay.
    """
    lacking = [(kind, key) for kind, key in _keys(locked) if key in named and kept.blob(store, kind, key) is None]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="facts") as pool:
        found = pool.map(bring, [key for _, key in lacking])
        for (kind, key), data in zip(lacking, found, strict=True):
            if data is not None:
                kept.keep(store, kind, key, data)


def _keys(locked: Lock) -> Iterator[tuple[str, str]]:
    """Yield kind and key of every record that an audit of the cell reads."""
    for wheel in locked.wheels:
        yield watch.FACTS, watch.key(wheel, locked.python)
    yield cell.SYSTEM, cell.system_key(locked)
