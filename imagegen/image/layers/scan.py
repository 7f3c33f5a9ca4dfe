"""Wheel scans: what an audit needs of a wheel's files, read while its layer is made, cached by the wheel's hash.

A scan depends on the wheel and on where its files go, not on the other wheels of the stack: file-conflict overrides of
the matrix, for one, are applied by the readers of scans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagegen.audit import extras, facts
from imagegen.audit.api.scan import ApiScanner
from imagegen.audit.collect import IN_MEMORY, Collector
from imagegen.audit.model import File, OptionalImport, Package
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache, StoredBlob
from imagegen.image.layers.install import InstalledFile, installation, relative, site_packages
from imagegen.image.layers.plan import LAYER_FORMAT, digest_of_json
from imagegen.image.layers.wheel import Wheel, open_locked
from imagegen.plan.lock.model import LockedWheel

SCANS = BlobCache("facts")


class WheelScanner:
    """Scans a wheel's files while another consumer reads them."""

    def __init__(self, store: Store, locked: LockedWheel, wheel: Wheel, python: str) -> None:
        self._store, self._locked, self._wheel, self._python = store, locked, wheel, python
        self._files: list[InstalledFile] = []
        self._found: dict[str, File] = {}
        self._modules = extras.optional_modules(wheel.requires)
        self._imports: dict[str, list[OptionalImport]] = {}  # by path
        self._api = ApiScanner(locked.name)
        self._site = site_packages(python)

    def over(self, files: Iterable[InstalledFile]) -> list[InstalledFile]:
        """Return the same files, wrapped so that the bytes read by their consumer are scanned too."""
        self._files += files
        return [replace(file, chunks=partial(self._seen, file)) for file in self._files]

    def finish(self) -> Package:
        """Read the files that were not read to their end, then record and return the scan."""
        for file in self._files:
            if file.path not in self._found:
                self._found[file.path] = scan_file(file, self._store.scratch)
                if self._is_read(file):
                    self._scan(file, b"".join(file.chunks()))
        files = {relative(path, self._site): file for path, file in self._found.items()}
        package = Package(
            self._locked.name,
            self._locked.version,
            files,
            requires=self._wheel.requires,
            tags=self._wheel.tags,
            licence=self._wheel.licence,
            optional_imports=tuple(each for path in sorted(self._imports) for each in self._imports[path]),
            exports=self._api.exports(list(files)),
            required_names=self._api.required_names(),
        )
        SCANS.write(self._store, scan_key(self._locked, self._python), facts.packed(package))
        return package

    def _seen(self, file: InstalledFile) -> Iterator[bytes]:
        source: list[bytes] | None = [] if self._is_read(file) else None
        with Collector(file.size, self._store.scratch) as collector:
            for chunk in file.chunks():
                collector.write(chunk)
                if source is not None:
                    source.append(chunk)
                yield chunk
            found = collector.finish(file.sha256, executable=file.executable)
        if source is not None:
            self._scan(file, b"".join(source))
        if found.unreadable and collector.partial:
            found = scan_file(file, self._store.scratch, whole=True)
        self._found[file.path] = found

    def _is_read(self, file: InstalledFile) -> bool:
        """Return whether the file is a Python source in which imports or names are looked for."""
        path = relative(file.path, self._site)
        return path.endswith(".py") and file.size <= IN_MEMORY and bool(self._modules or self._api.reads(path))

    def _scan(self, file: InstalledFile, source: bytes) -> None:
        path = relative(file.path, self._site)
        if self._modules:
            self._imports[file.path] = list(extras.scan(path, source, self._modules))
        if self._api.reads(path):
            self._api.add(path, source)


def scan_wheel(store: Store, locked: LockedWheel, python: str) -> Package:
    """Return the scan of a wheel; one without a layer in this store is read, and must be in the store.

    Raises WheelError, StoreError.
    """
    if (found := recorded_scan(store, locked, python)) is not None:
        return found
    with store.explained(), open_locked(store, locked) as wheel:
        watch = WheelScanner(store, locked, wheel, python)
        watch.over(installation(wheel, python))
        return watch.finish()


def recorded_scan(store: Store, locked: LockedWheel, python: str) -> Package | None:
    """The wheel's facts, where the store has them."""
    data = SCANS.read(store, scan_key(locked, python))
    return None if data is None else facts.package(data)


def recorded_blob(store: Store, locked: LockedWheel, python: str) -> StoredBlob | None:
    """Return the blob that holds the wheel's scan, where the store has it."""
    return SCANS.get(store, scan_key(locked, python))


def scan_file(file: InstalledFile, scratch: Path, *, whole: bool = False) -> File:
    """Scan a file. As little of it is read as will do, and once more where the collector has left out too much.

    `scratch` and `whole` are as for Collector.
    """
    with Collector(file.size, scratch, whole=whole) as collector:
        for chunk in file.chunks():
            collector.write(chunk)
            if collector.idle:
                break
        found = collector.finish(file.sha256, executable=file.executable)
    return scan_file(file, scratch, whole=True) if found.unreadable and collector.partial else found


def scan_key(locked: LockedWheel, python: str) -> str:
    """Return the digest of all that decides the wheel's scan.

    The version is part of it, because 1.0 and 1.0+cu130 can be the same bytes under two file names.
    """
    return digest_of_json([locked.file.sha256, locked.version, python, LAYER_FORMAT, facts.FACTS_FORMAT])
