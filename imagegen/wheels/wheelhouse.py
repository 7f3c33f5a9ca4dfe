"""The wheelhouse: wheels that a compiler made, in the store, each under the key of everything that decides it.

The file is a blob, what it is a record of the store; `store gc` leaves both alone, `wheels gc` does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from imagegen.store import Store
from imagegen.wheels.model import BuiltWheel

KIND = "wheel"  # records of the store


def known(store: Store, key: str) -> BuiltWheel | None:
    """The wheel with this key; None where it was never kept, or its file is gone or damaged."""
    found = _recall(store, key)
    return found if found and store.intact(found.digest, found.size) else None


def keep(store: Store, wheel: BuiltWheel) -> None:
    """Remember a wheel whose file is in the store already. The first of a key stays: it may be locked somewhere."""
    with store.lock(f"wheel-{wheel.key}"):
        if known(store, wheel.key) is None:
            store.remember(KIND, wheel.key, asdict(wheel))


def every(store: Store) -> Iterator[BuiltWheel]:
    """All wheels that are kept, by name, version and key; what has lost its file is not among them."""
    found = [
        wheel for key in store.keys(KIND) if (wheel := _recall(store, key)) and store.has(wheel.digest, wheel.size)
    ]
    yield from sorted(found, key=lambda wheel: (wheel.name, wheel.version, wheel.key))


def forget(store: Store, key: str) -> None:
    """Let go of a wheel; its file goes with the next collection of the store."""
    store.forget(KIND, key)


def _recall(store: Store, key: str) -> BuiltWheel | None:
    record = store.recall(KIND, key)
    return BuiltWheel(**record) if record else None
