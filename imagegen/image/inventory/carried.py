"""Facts: what a store knows of a cell's wheels and base, in bytes, by keys that another store takes it under.

An audit then needs no wheel, and the check that no two packages own one file neither.
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
    """All that the store knows of the lock's wheels and base; the same bytes wherever the same is known."""
    found = {key: kept.recall(store, kind, key) for kind, key in _keys(locked)}
    return {key: data for key, data in sorted(found.items()) if data is not None}


def take(locked: Lock, store: Store, named: Container[str], bring: Callable[[str], bytes | None]) -> None:
    """Let the store know, of the lock's wheels and base, what is named and it does not know yet.

    `bring` is given a key; what it returns is believed, and kept. None: nobody has it. Raises what it raises: what came
    before stays.
    """
    lacking = [(kind, key) for kind, key in _keys(locked) if key in named and kept.blob(store, kind, key) is None]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="facts") as pool:
        found = pool.map(bring, [key for _, key in lacking])
        for (kind, key), data in zip(lacking, found, strict=True):
            if data is not None:
                kept.keep(store, kind, key, data)


def _keys(locked: Lock) -> Iterator[tuple[str, str]]:
    """Kind and key of every record that an audit of the cell asks for."""
    for wheel in locked.wheels:
        yield watch.FACTS, watch.key(wheel, locked.python)
    yield cell.SYSTEM, cell.system_key(locked)
