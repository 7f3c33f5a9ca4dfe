"""Reservations of memory and cores on a machine by builds of this store, in all processes of imagegen.

A reservation is a file of the store's tmp/ that its process has locked. The file of a killed process does not count,
and is removed when a store is opened.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from imagegen.core import temporary
from imagegen.core.data import parse_json
from imagegen.core.store import Store

_PREFIX = "reserved-"


@dataclass(frozen=True)
class ReservedResources:
    """Memory and cores that running builds have reserved on a machine."""

    memory: int  # bytes
    cores: int


@contextmanager
def reserve(store: Store, machine_id: str, memory: int, cores: int) -> Iterator[None]:
    """Reserve `memory` bytes and `cores` on a machine until the end of the block, or of this process."""
    with store.explained():
        handle, path = temporary.new_file(store.scratch, _PREFIX)
        with os.fdopen(handle, "w") as file:
            json.dump({"place": machine_id, "memory": memory, "cores": cores}, file)
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)


def reserved_resources(store: Store, machine_id: str) -> ReservedResources:
    """Return the memory and cores that running builds have reserved on a machine."""
    reservations = [_read_reservation(path, machine_id) for path in store.scratch.glob(f"{_PREFIX}*")]
    return ReservedResources(
        sum(reservation.memory for reservation in reservations), sum(reservation.cores for reservation in reservations)
    )


def _read_reservation(path: Path, machine_id: str) -> ReservedResources:
    """Return the resources of a reservation; none if it is for another machine, or its process has ended."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(handle) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = parse_json(file.read())
                if content["place"] == machine_id:
                    return ReservedResources(int(content["memory"]), int(content["cores"]))
    return ReservedResources(0, 0)
