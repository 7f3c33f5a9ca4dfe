"""Wheel scans for audits, cached by the wheel's hash.

A scan is read while the wheel's layer is made. It depends on the wheel and on where its files go, not on the other
wheels of the stack: file-conflict overrides of the matrix, for one, are applied by the readers of scans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from imagegen.audit import extras, facts
from imagegen.audit.collect import IN_MEMORY, Collector
from imagegen.audit.imports import ApiScanner
from imagegen.audit.model import OptionalImport, Package
from imagegen.audit.readers.installation import InstalledFile, installation, relative, site_packages
from imagegen.audit.readers.loose_wheels import scan_file
from imagegen.audit.readers.wheel import Wheel
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, StoredBlob
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.lock.model import LockedWheel

SCANS = BlobCache("facts")


def open_locked(store: Store, locked: LockedWheel) -> Wheel:
    """The wheel of a lock, which must be in the store."""
    path = store.path(locked.file.digest)
    return Wheel(path, locked.file.filename, ignore_record=locked.record_exception is not None)


class WheelScanner:
    """Scans a wheel's `files` while another consumer reads them."""

    def __init__(
        self, store: Store, locked: LockedWheel, wheel: Wheel, files: Sequence[InstalledFile], python: str
    ) -> None:
        self._store, self._locked, self._wheel, self._python = store, locked, wheel, python
        self._files = files
        self._found: dict[str, bytes] = {}  # path relative to site-packages -> result of `facts.file_text`
        self._modules = extras.optional_modules(wheel.requires)
        self._imports: dict[str, list[OptionalImport]] = {}  # by path
        self._site = site_packages(python)
        self._api = ApiScanner(locked.name, [relative(file.path, self._site) for file in files])

    def watched(self) -> list[InstalledFile]:
        """Return the files, wrapped so that the bytes read by their consumer are scanned too."""
        return [
            InstalledFile(file.path, file.size, file.executable, file.sha256, partial(self._seen, file))
            for file in self._files
        ]

    def finish(self) -> bytes:
        """Read the files that were not read to their end, then record and return the scan, as `facts.packed` does."""
        for file in self._files:
            path = relative(file.path, self._site)
            if path not in self._found:
                self._found[path] = facts.file_text(scan_file(file, self._store.scratch))
                if self._is_read(file):
                    self._scan(file, b"".join(file.chunks()))
        package = Package(
            self._locked.name,
            self._locked.version,
            {},
            requires=self._wheel.requires,
            tags=self._wheel.tags,
            licence=self._wheel.licence,
            optional_imports=tuple(
                optional_import for path in sorted(self._imports) for optional_import in self._imports[path]
            ),
            exports=self._api.exports(),
            required_names=self._api.required_names(),
        )
        packed = facts.packed_package(package, self._found)
        SCANS.write(self._store, scan_key(self._locked, self._python), packed)
        return packed

    def _seen(self, file: InstalledFile) -> Iterator[bytes]:
        source: list[bytes] | None = [] if self._is_read(file) else None
        with Collector(file.size, self._store.scratch) as collector:
            for chunk in file.chunks():
                collector.write(chunk)
                if source is not None:
                    source.append(chunk)
                yield chunk
            scan_result = collector.finish(file.sha256, executable=file.executable)
        if source is not None:
            self._scan(file, b"".join(source))
        if scan_result.unreadable and collector.partial:
            scan_result = scan_file(file, self._store.scratch, whole=True)
        self._found[relative(file.path, self._site)] = facts.file_text(scan_result)

    def _is_read(self, file: InstalledFile) -> bool:
        """Return whether the file is a Python source in which imports or names are looked for."""
        path = relative(file.path, self._site)
        return path.endswith(".py") and file.size <= IN_MEMORY and bool(self._modules or self._api.reads(path))

    def _scan(self, file: InstalledFile, source: bytes) -> None:
        path = relative(file.path, self._site)
        if self._modules:
            self._imports[file.path] = list(extras.scan_imports(path, source, self._modules))
        if self._api.reads(path):
            self._api.add(path, source)


def scan_wheel(store: Store, locked: LockedWheel, python: str) -> Package:
    """Return the scan of a wheel; one without a layer in this store is read, and must be in the store.

    Raises WheelError, StoreError.
    """
    if (recorded := recorded_scan(store, locked, python)) is not None:
        return recorded
    with store.explained(), open_locked(store, locked) as wheel:
        watch = WheelScanner(store, locked, wheel, installation(wheel, python), python)
        return facts.package(watch.finish())


def recorded_scan(store: Store, locked: LockedWheel, python: str) -> Package | None:
    """Return the wheel's scan; None if the store lacks it."""
    data = SCANS.read(store, scan_key(locked, python))
    return None if data is None else facts.package(data)


def recorded_blob(store: Store, locked: LockedWheel, python: str) -> StoredBlob | None:
    """Return the blob that holds the wheel's scan; None if the store lacks it."""
    return SCANS.get(store, scan_key(locked, python))


def scan_key(locked: LockedWheel, python: str) -> str:
    """Return the digest of all that decides the wheel's scan.

    The version is part of it, because 1.0 and 1.0+cu130 can be the same bytes under two file names.
    """
    return digest_of_json([locked.file.sha256, locked.version, python, LAYER_FORMAT, facts.FACTS_FORMAT])
