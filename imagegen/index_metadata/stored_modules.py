"""Modules of wheels: each source is parsed once, and the store keeps the result by the wheel's hash."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from imagegen.audit.api.import_time import ImportTime, import_time
from imagegen.audit.api.source import imported_tops
from imagegen.audit.model import Package
from imagegen.audit.module_facts import MODULES_FORMAT, packed_modules, read_modules
from imagegen.core.errors import FetchError
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache
from imagegen.oci.documents import digest_of

MODULES = BlobCache("modules")
IMPORTERS = BlobCache("importers")  # of a wheel: top-level module -> paths of the sources that import it


class StoredModules(ABC):
    """Reads modules of wheels, as `ModuleReader`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._modules: dict[str, dict[str, ImportTime]] = {}  # by package and path
        self._stored: dict[str, int] = {}  # how many of them the store has
        self._importers: dict[str, Mapping[str, Sequence[str]]] = {}  # by package and top-level module
        self.unread: set[str] = set()

    @abstractmethod
    def wheel_hash(self, name: str) -> str:
        """Return a key of the files of a package's wheel: its sha256, and how it is read."""

    @abstractmethod
    def source(self, name: str, path: str) -> bytes | None:
        """Return a file of a package's wheel, by its path below site-packages; None if it has none, or a longer one.

        Raises FetchError if the wheel is not available.
        """

    def read(self, package: Package, path: str) -> ImportTime | None:
        """Return the module at `path`; None if the wheel is not available."""
        modules = self.modules(package.name)
        if path not in modules:
            try:
                source = self.source(package.name, path)
            except FetchError:
                self.unread.add(package.name)
                return None
            modules[path] = ImportTime() if source is None else import_time(path, source)
        return modules[path]

    def importing(self, package: Package, tops: Collection[str]) -> Collection[str]:
        """Return the paths of a package's sources that may import one of the top-level modules."""
        importers = self.importers(package)
        return {path for top in importers.keys() & tops for path in importers[top]}

    def importers(self, package: Package) -> Mapping[str, Sequence[str]]:
        """Return the sources of a package by the top-level modules of others that they import."""
        name = package.name
        if name not in self._importers:
            key = digest_of(f"importers {MODULES_FORMAT} {self.wheel_hash(name)}".encode())
            data = IMPORTERS.read(self._store, key)
            try:
                importers = json.loads(data) if data else self._find_importers(package)
            except FetchError:
                self.unread.add(name)
                importers = {}
            else:
                if not data:
                    IMPORTERS.write(self._store, key, json.dumps(importers, sort_keys=True).encode())
            self._importers[name] = importers
        return self._importers[name]

    def _find_importers(self, package: Package) -> dict[str, list[str]]:
        paths = sorted(path for path in package.files if path.endswith(".py"))
        excluded = {path.partition("/")[0].removesuffix(".py") for path in paths} | sys.stdlib_module_names
        importers: dict[str, list[str]] = {}
        for path, source in self.sources(package.name, paths):
            for top in imported_tops(source) - excluded:
                importers.setdefault(top, []).append(path)
        return importers

    def sources(self, name: str, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield files of a package's wheel with their contents. Raises FetchError."""
        yield from ((path, source) for path in paths if (source := self.source(name, path)) is not None)

    def modules(self, name: str) -> dict[str, ImportTime]:
        """Return the modules of a package that were read, by path."""
        if name not in self._modules:
            data = MODULES.read(self._store, self._key(name))
            self._modules[name] = read_modules(data) if data else {}
            self._stored[name] = len(self._modules[name])
        return self._modules[name]

    def close(self) -> None:
        """Store the modules that were read."""
        for name, modules in self._modules.items():
            if len(modules) > self._stored[name]:
                MODULES.write(self._store, self._key(name), packed_modules(modules))

    def _key(self, name: str) -> str:
        return digest_of(f"{MODULES_FORMAT} {self.wheel_hash(name)}".encode())
