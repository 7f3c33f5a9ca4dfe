"""Compiled wheels of a few bytes, as a wheelhouse keeps them."""

from __future__ import annotations

import os

from imagegen.core.store import Store
from imagegen.lock.builds import BuiltWheel
from imagegen.oci.documents import digest_of

KEY = digest_of(b"all that decides it")
DATA = b"the bytes of a wheel"
LOG = b"[1/73] nvcc ..."


def built(store: Store, key: str = KEY, data: bytes = DATA, name: str = "demo") -> BuiltWheel:
    """A wheel whose file and log are in the store."""
    sha256 = store.write(data).removeprefix("sha256:")
    record = {"units": 73, "log": store.write(LOG)}
    return BuiltWheel(key, name, "1.0", f"{name}-1.0-py3-none-any.whl", sha256, len(data), record)


def age(store: Store) -> None:
    for path in (store.root / "blobs/sha256").iterdir():
        os.utime(path, (0, 0))
