"""Reservations of memory and cores on a machine by builds of this store, in all processes of imagegen.

A reservation is a file of the store's tmp/ that its maker holds a lock on: that of a killed process does not count, and
is removed when a store is opened.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.store import Store, unfinished

_PREFIX = "reserved-"


@dataclass(frozen=True)
class Taken:
    memory: int  # bytes
    cores: int


@contextmanager
def reserved(store: Store, place: str, memory: int, cores: int) -> Iterator[None]:
    """Hold `memory` bytes and `cores` on `place` until the end of the block, or of this process."""
    with store.explained():
        handle, path = unfinished.new_file(store.scratch, _PREFIX)
        with os.fdopen(handle, "w") as file:
            json.dump({"place": place, "memory": memory, "cores": cores}, file)
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)


def taken(store: Store, place: str) -> Taken:
    """Return the memory and jobs that running builds on `place` hold."""
    held = [_held(path, place) for path in store.scratch.glob(f"{_PREFIX}*")]
    return Taken(sum(each.memory for each in held), sum(each.cores for each in held))


def _held(path: Path, place: str) -> Taken:
    """Return what a reservation holds; nothing for another place's, and for one whose process has ended."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(handle) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                said = json.load(file)
                if said["place"] == place:
                    return Taken(int(said["memory"]), int(said["cores"]))
    return Taken(0, 0)
