"""The lock: everything that decides an image's bytes, resolved, fetched by hash."""

from imagegen.lock.contents import contents
from imagegen.lock.fetch import complete, fetch, fetch_each
from imagegen.lock.file import dumps, inputs_hash, read, write
from imagegen.lock.freshness import contradictions, stale
from imagegen.lock.indexes import with_indexes
from imagegen.lock.make import make

__all__ = [
    "complete",
    "contents",
    "contradictions",
    "dumps",
    "fetch",
    "fetch_each",
    "inputs_hash",
    "make",
    "read",
    "stale",
    "with_indexes",
    "write",
]
