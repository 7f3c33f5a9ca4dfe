"""The lock: everything that decides an image's bytes, resolved, fetched by hash."""

from imagegen.lock.file import dumps, inputs_hash, read, stale, write

__all__ = ["dumps", "inputs_hash", "read", "stale", "write"]
