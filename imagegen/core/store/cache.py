"""Results in the store, by the digest of their inputs. docs/internals/cache.md lists the kinds, and what decides each.

Formats, codecs and programs are parts of keys, so that the results of another imagegen are under other keys. Records
are never removed; a blob that a record names is removed like others, after a day without use or reference.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from imagegen.core.deferred import dataclass
from imagegen.core.store.layout import DamagedError, Store
from imagegen.core.types import Digest, Size
from imagegen.oci.documents import digest_of, is_digest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

V = TypeVar("V")


class Cache(Generic[V]):
    """Results of one kind, of the type `form`, by key ("sha256:...").

    A record that `put` did not write, or wrote under another key or in another form, counts as absent. A user with
    write access to the store can forge one; the digest in the lock's record protects a build against that.
    """

    def __init__(self, kind: str, form: type[V]) -> None:
        self._kind, self._form = kind, form

    @cached_property
    def _adapter(self) -> TypeAdapter[V]:
        from pydantic import TypeAdapter  # late, here and below: many commands find no record to read

        return TypeAdapter(self._form)

    def get(self, store: Store, key: str) -> V | None:
        """Return the result for the inputs behind `key`, or None."""
        with store.explained():
            try:
                seal, _, body = self._path(store, key).read_bytes().partition(b"\n")
            except FileNotFoundError:
                return None
        return self._parse(body) if seal == self._seal(key, body) else None

    def _parse(self, body: bytes) -> V | None:
        """Return the result in a record; None for one of another form."""
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(body)
        except ValidationError:
            return None

    def put(self, store: Store, key: str, result: V) -> None:
        """Store the result, so that it is not computed again."""
        path = self._path(store, key)
        body = json.dumps(self._adapter.dump_python(result, mode="json", by_alias=True), sort_keys=True).encode()
        with store.explained():
            path.parent.mkdir(exist_ok=True)
            store.replace(path.relative_to(store.root), self._seal(key, body) + b"\n" + body, sync=False)

    def forget(self, store: Store, key: str) -> None:
        """Undo `put`."""
        with store.explained():
            self._path(store, key).unlink(missing_ok=True)

    def keys(self, store: Store) -> list[str]:
        """Return the keys that have a record, sorted."""
        folder = store.root / "records" / self._kind
        return sorted(f"sha256:{path.name}" for path in folder.iterdir()) if folder.is_dir() else []

    def _path(self, store: Store, key: str) -> Path:
        return store.root / "records" / self._kind / store.path(key).name

    def _seal(self, key: str, body: bytes) -> bytes:
        return digest_of(f"{self._kind}\n{key}\n".encode() + body).encode()


def has_results(store: Store, kind: str) -> bool:
    """Return whether the store has a record of a kind."""
    folder = store.root / "records" / kind
    return folder.is_dir() and next(folder.iterdir(), None) is not None


def digest_of_results(store: Store, kind: str) -> str:
    """Return a digest of the names, times and sizes of the records of a kind: another one follows each `put`."""
    folder = store.root / "records" / kind
    entries = [(item.name, item.stat()) for item in os.scandir(folder)] if folder.is_dir() else []
    rows = sorted((name, status.st_mtime_ns, status.st_size) for name, status in entries)
    return digest_of("".join(f"{name} {time} {size}\n" for name, time, size in rows).encode())


@dataclass(frozen=True)
class StoredBlob:
    """A blob of the store, `size` in bytes."""

    digest: Digest
    size: Size


class BlobCache(Cache[StoredBlob]):
    """Results of one kind that are blobs of the store."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, StoredBlob)

    def get(self, store: Store, key: str) -> StoredBlob | None:
        """Return the blob, if it is here; it counts as used now."""
        entry = super().get(store, key)
        return entry if entry and store.has(entry.digest, entry.size) else None

    def _parse(self, body: bytes) -> StoredBlob | None:
        """Parse without pydantic: an audit reads hundreds of records, and nothing else that needs it."""
        try:
            record = json.loads(body)
        except ValueError:
            return None
        match record:
            case {"digest": str(digest), "size": int(size), **more} if is_digest(digest) and size >= 0 and not more:
                return StoredBlob(digest, size)
        return None

    def write(self, store: Store, key: str, data: bytes) -> None:
        """Store the contents of a blob."""
        self.put(store, key, StoredBlob(store.write(data), len(data)))

    def read(self, store: Store, key: str) -> bytes | None:
        """Return the contents of the blob, verified; None where it is gone, or damaged: then it is removed."""
        entry = self.get(store, key)
        try:
            return store.read(entry.digest) if entry else None
        except DamagedError:
            return None
