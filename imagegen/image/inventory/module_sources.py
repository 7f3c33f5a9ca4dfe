"""The Python sources of installed files, and of locked wheels, whose parsed modules the store keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack

from imagegen.audit.api.import_time import ImportTime, import_time
from imagegen.audit.api.source import LONGEST, imported_tops
from imagegen.audit.model import Package
from imagegen.audit.module_facts import MODULES_FORMAT, packed_modules, read_modules
from imagegen.audit.readers.installation import InstalledFile, installation, relative, site_packages
from imagegen.core.errors import FetchError
from imagegen.core.store import Store
from imagegen.core.store.cache import BlobCache
from imagegen.image.inventory.tree import FileTree, join, read_file
from imagegen.image.layers.plan import digest_of_json
from imagegen.image.layers.scan import open_locked
from imagegen.index_metadata.stored_modules import StoredModules
from imagegen.lock.model import Lock

LOCK_MODULES = BlobCache("lock-modules")
_LONGEST_LIBRARY = 256 << 20  # bytes


class TreeModules:
    """The modules below a directory of a file tree."""

    unread: Collection[str] = ()

    def __init__(self, tree: FileTree, site: str) -> None:
        self._tree, self._site = tree, site

    def read(self, package: Package, path: str) -> ImportTime | None:  # noqa: ARG002 - one tree has all packages
        """Return the module at `path` of a package that lies below the directory."""
        content = read_file(self._tree, join(self._site, path), _longest(path))
        return None if content is None else import_time(path, content)

    def importing(self, package: Package, tops: Collection[str]) -> Collection[str]:
        """Return the paths of a package's sources that may import one of the top-level modules."""
        sources = (
            (path, read_file(self._tree, join(self._site, path), LONGEST))
            for path in package.files
            if path.endswith(".py")
        )
        return [path for path, source in sources if source and not imported_tops(source).isdisjoint(tops)]

    def close(self) -> None:
        """Keep nothing: files of an environment may change."""


class WheelModules(StoredModules):
    """The modules of a lock's wheels, opened when the store does not know a module of them.

    The store keeps all modules of a lock under a key of its own, so that they can go to another store without wheels.
    """

    def __init__(self, locked: Lock, store: Store) -> None:
        super().__init__(store)
        self._locked = locked
        self._opened = ExitStack()
        self._wheels = {wheel.name: wheel for wheel in locked.wheels}
        self._sources: dict[str, Mapping[str, InstalledFile]] = {}
        data = LOCK_MODULES.read(store, modules_key(locked))
        self._of_lock = read_modules(data) if data else {}  # by package and path: "torch:torch/nn/__init__.py"
        self._used: dict[str, ImportTime] = {}

    def read(self, package: Package, path: str) -> ImportTime | None:
        """Return the module at `path`; None if the store has neither it nor the wheel."""
        key = f"{package.name}:{path}"
        module = self._of_lock.get(key) or super().read(package, path)
        if module:
            self._used[key] = module
        return module

    def importing(self, package: Package, tops: Collection[str]) -> Collection[str]:
        """Return the paths as `ModuleReader`; of a lock that was read before, all that were read then."""
        if self._of_lock:
            paths = (key.partition(":") for key in self._of_lock)
            return [path for name, _, path in paths if name == package.name]
        return super().importing(package, tops)

    def wheel_hash(self, name: str) -> str:
        """Return the wheel's sha256, with a mark if its RECORD is ignored."""
        wheel = self._wheels[name]
        return wheel.file.sha256 if wheel.record_exception is None else f"{wheel.file.sha256} without RECORD"

    def source(self, name: str, path: str) -> bytes | None:
        """Return a file of the wheel, as it is installed. Raises FetchError, WheelError."""
        if name not in self._sources:
            wheel, python = self._wheels[name], self._locked.python
            if not self._store.has(wheel.file.digest, wheel.file.size):
                raise FetchError(f"the store lacks {wheel.file.filename}", code="fetch-missing")
            opened = self._opened.enter_context(open_locked(self._store, wheel))
            site = site_packages(python)
            self._sources[name] = {relative(file.path, site): file for file in installation(opened, python)}
        file = self._sources[name].get(path)
        return b"".join(file.chunks()) if file and file.size <= _longest(path) else None

    def close(self) -> None:
        """Close the wheels and store the modules that were read."""
        self._opened.close()
        super().close()
        if not self.unread and self._used != self._of_lock:
            LOCK_MODULES.write(self._store, modules_key(self._locked), packed_modules(self._used))


def modules_key(locked: Lock) -> str:
    """Return the digest of all that decides which modules an audit of the lock reads."""
    wheels = [[wheel.name, wheel.file.sha256] for wheel in locked.wheels]
    return digest_of_json([locked.cell, locked.python, wheels, MODULES_FORMAT])


def _longest(path: str) -> int:
    return LONGEST if path.endswith(".py") else _LONGEST_LIBRARY
