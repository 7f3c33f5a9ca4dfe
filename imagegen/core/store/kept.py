"""Cache for results too large for a record: the record stores the digest of a blob.

Records are never removed; a blob of this cache is removed like others, after a day without use or reference.
"""

from __future__ import annotations

from imagegen.core.store.layout import DamagedError, Store


def keep(store: Store, kind: str, key: str, data: bytes) -> None:
    """Keep `data` under this kind and key ("sha256:...")."""
    store.remember(kind, key, {"digest": store.write(data), "size": len(data)})


def recall(store: Store, kind: str, key: str) -> bytes | None:
    """Return what `keep` stored, verified; None where it is gone, or damaged: then it is removed."""
    digest = blob(store, kind, key)
    try:
        return store.read(digest) if digest else None
    except DamagedError:
        return None


def blob(store: Store, kind: str, key: str) -> str | None:
    """The digest of the blob, if it is here; it counts as used now."""
    record = store.recall(kind, key)
    if record is None or not store.has(record["digest"], record["size"]):
        return None
    return str(record["digest"])
