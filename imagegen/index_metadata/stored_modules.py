"""Modules of wheels: each source is parsed once, and the store keeps the result by the wheel's hash."""

from __future__ import annotations

from abc import ABC, abstractmethod

from imagegen.audit.api.import_time import ImportTime, import_time
from imagegen.audit.model import Package
from imagegen.audit.module_facts import MODULES_FORMAT, packed_modules, read_modules
from imagegen.core.errors import FetchError
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache
from imagegen.oci.documents import digest_of

MODULES = BlobCache("modules")


class StoredModules(ABC):
    """Reads modules of wheels, as `ModuleReader`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._modules: dict[str, dict[str, ImportTime]] = {}  # by package and path
        self._stored: dict[str, int] = {}  # how many of them the store has
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
