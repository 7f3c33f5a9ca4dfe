"""The Python sources of installed files, and of locked wheels, whose parsed modules the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from imagegen.audit.api.import_time import ImportTime, import_time
from imagegen.audit.api.source import LONGEST
from imagegen.audit.model import Package
from imagegen.audit.module_facts import MODULES_FORMAT, packed_modules, read_modules
from imagegen.audit.readers.installation import InstalledFile, installation, relative, site_packages
from imagegen.core.context import Context
from imagegen.core.store.cache import BlobCache
from imagegen.image import inputs
from imagegen.image.inventory.tree import FileTree, join, read_file
from imagegen.image.layers.plan import digest_of_json
from imagegen.image.layers.scan import open_locked
from imagegen.lock.model import Lock, LockedWheel

MODULES = BlobCache("modules")


class TreeModules:
    """The modules below a directory of a file tree."""

    def __init__(self, tree: FileTree, site: str) -> None:
        self._tree, self._site = tree, site

    def read(self, package: Package, path: str) -> ImportTime | None:  # noqa: ARG002 - one tree has all packages
        """Return the module at `path` of a package that lies below the directory."""
        source = read_file(self._tree, join(self._site, path), LONGEST)
        return None if source is None else import_time(path, source)

    def close(self) -> None:
        """Keep nothing: files of an environment may change."""


class WheelModules:
    """The modules of a lock's wheels. A wheel is opened, or fetched, when the store does not know a module of it."""

    def __init__(self, locked: Lock, context: Context) -> None:
        self._opened = ExitStack()
        self._locked, self._context = locked, context
        self._wheels = {wheel.name: wheel for wheel in locked.wheels}
        self._modules: dict[str, dict[str, ImportTime]] = {}  # by distribution and path
        self._stored: dict[str, int] = {}  # how many of them the store has
        self._sources: dict[str, Mapping[str, InstalledFile]] = {}

    def read(self, package: Package, path: str) -> ImportTime | None:
        """Return the module at `path`; None for one that is not in the package's wheel. Raises as `fetch_each`."""
        name = package.name
        if name not in self._modules:
            data = MODULES.read(self._context.store, modules_key(self._wheels[name]))
            self._modules[name] = read_modules(data) if data else {}
            self._stored[name] = len(self._modules[name])
        if path not in self._modules[name]:
            file = self._files(name).get(path)
            is_short = file is not None and file.size <= LONGEST
            source = b"".join(file.chunks()) if file and is_short else None
            self._modules[name][path] = import_time(path, source) if source is not None else ImportTime()
        return self._modules[name][path]

    def close(self) -> None:
        """Store the modules that were read."""
        self._opened.close()
        for name, modules in self._modules.items():
            if len(modules) > self._stored[name]:
                MODULES.write(self._context.store, modules_key(self._wheels[name]), packed_modules(modules))

    def _files(self, name: str) -> Mapping[str, InstalledFile]:
        if name not in self._sources:
            wheel, store, python = self._wheels[name], self._context.store, self._locked.python
            inputs.fetch(replace(self._locked, wheels=(wheel,)), self._context)
            opened = self._opened.enter_context(open_locked(store, wheel))
            site = site_packages(python)
            self._sources[name] = {relative(file.path, site): file for file in installation(opened, python)}
        return self._sources[name]


def modules_key(wheel: LockedWheel) -> str:
    """Return the digest of all that decides what the modules of a wheel need."""
    return digest_of_json([wheel.file.sha256, wheel.record_exception is not None, MODULES_FORMAT])
