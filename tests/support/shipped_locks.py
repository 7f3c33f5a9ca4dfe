"""The shipped locks, each read once."""

from __future__ import annotations

from functools import cache

from imagegen import lock as locks
from imagegen.core.data import shipped
from imagegen.lock.model import Lock

_read = locks.read  # before any test replaces it
NAMES = sorted(path.stem for path in shipped("locks").glob("*.toml"))


@cache
def shipped_lock(name: str) -> Lock:
    return _read(shipped("locks") / f"{name}.toml")
