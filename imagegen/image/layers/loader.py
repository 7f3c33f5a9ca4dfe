"""The layer by which the dynamic loader finds libraries in directories that a lock declares: ld.so.conf and its cache.

ldconfig does not run. The base's own cache gets the entries that it would make. Source: ldconfig(8), ld.so(8).
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from imagegen.audit.examine import examine
from imagegen.audit.model import File
from imagegen.audit.readers.installation import relative, site_packages
from imagegen.audit.window import OnDisk
from imagegen.core.errors import BaseError, LockError
from imagegen.core.image_format import PREFIX
from imagegen.core.layer_tree import SymbolicLink, follow_links
from imagegen.core.store import Store
from imagegen.image.layers import loader_cache, ownership, scan
from imagegen.image.layers.loader_cache import CacheEntry, LoaderCache
from imagegen.image.layers.support import LOADER_CACHE, LOADER_CONFIGURATION, loader_configuration, support_links
from imagegen.lock.model import Lock, LockedWheel

_MACHINES = {"linux/amd64": 62, "linux/arm64": 183}  # platform -> e_machine
_LIBRARY = re.compile(r"(lib|ld-).*\.so.*", re.DOTALL)  # the names of files that ldconfig reads
_MAX_CACHE = 64 << 20  # bytes


@dataclass(frozen=True)
class LoaderLibrary:
    """A library of a declared directory. The loader finds it by `name`, its SONAME, at `path`.

    `file` is the file at `real`, a path without links; `wheel` is the distribution that it belongs to. `linked` means
    that `path` is not there, and becomes a link to the file.
    """

    name: str
    path: str
    real: str
    file: File
    wheel: str | None = None
    linked: bool = False


def libraries(lock: Lock, store: Store, root: Path) -> tuple[LoaderLibrary, ...]:
    """Return the libraries of the lock's declared directories, in the order in which the loader takes them.

    `root` is the tree of all that lies under the venv. Wheels that no layer was made of must be in the store, and so
    must copied files. Raises LockError for a directory that the image does not have, or that has no library.
    """
    return _ImageTree(lock, store, root).all_libraries()


def layer_files(lock: Lock, store: Store, root: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the layer's files, path -> content, and its links, path -> target. Raises as `libraries`, BaseError."""
    tree = _ImageTree(lock, store, root)
    found_libraries = tree.all_libraries()
    directories = {tree.real(directory.path) for directory in lock.ldconfig}
    before = _cache_of(root)
    lower_entries = [entry for entry in before.entries if tree.real(posixpath.dirname(entry.path)) not in directories]
    flags = loader_cache.FLAGS[_MACHINES[lock.platform]]
    added = [CacheEntry(library.name, library.path, flags) for library in found_libraries]
    cache = loader_cache.add(LoaderCache(tuple(lower_entries), before.hwcaps), added)
    files = {LOADER_CACHE: loader_cache.write(cache), LOADER_CONFIGURATION: loader_configuration(lock).encode()}
    links = {
        posixpath.join(posixpath.dirname(library.real), library.name): posixpath.basename(library.real)
        for library in found_libraries
        if library.linked
    }
    return files, links


def _cache_of(root: Path) -> LoaderCache:
    path = root / LOADER_CACHE.lstrip("/")
    try:
        with path.open("rb") as file:
            return loader_cache.read(file.read(_MAX_CACHE))
    except FileNotFoundError:
        return LoaderCache()
    except (OSError, ValueError) as error:
        raise BaseError(
            "the base's cache of the dynamic loader cannot be read",
            code="base-loader-cache-unreadable",
            where=LOADER_CACHE,
            why=str(error),
            fix="leave out `ldconfig`, or use another base",
        ) from error


class _ImageTree:
    """The files of a planned image, from the parts of its lock: base tree, wheels, links, copied files."""

    def __init__(self, lock: Lock, store: Store, root: Path) -> None:
        self._lock, self._store, self._root = lock, store, root
        self._links = {f"{PREFIX}/lib64": "lib", **support_links(lock)}
        self._wheels: dict[str, LockedWheel] = {}  # by path of a file
        for wheel in lock.wheels:
            paths = ownership.table(store, wheel, lock.python)
            lost = ownership.left_out(lock, wheel.name, paths)
            self._wheels |= {path: wheel for path in paths if path not in lost}
        self._copies = {file.path: file for copy in lock.copies for file in copy.files}
        self._real: dict[str, str | None] = {}

    def all_libraries(self) -> tuple[LoaderLibrary, ...]:
        return tuple(library for directory in self._lock.ldconfig for library in self._libraries(directory.path))

    def real(self, path: str) -> str | None:
        """Return the path without links that `path` means; None where links run in circles."""
        if path not in self._real:
            self._real[path] = self._resolve(path)
        return self._real[path]

    def _resolve(self, path: str) -> str | None:
        def look(directory: str, name: str, _is_last: bool) -> str | SymbolicLink:
            child = posixpath.join(directory, name)
            target = self._links.get(child) or self._link_of_base(child)
            return SymbolicLink(target) if target else child

        try:
            return follow_links(path, "/", look)[-1]
        except ValueError:
            return None

    def _link_of_base(self, path: str) -> str | None:
        try:
            return os.readlink(self._on_disk(path))
        except OSError:
            return None  # no link, or only in a layer above

    def _on_disk(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _libraries(self, path: str) -> Iterator[LoaderLibrary]:
        """Yield the libraries of a directory, sorted by name. Raises LockError where there are none."""
        real = self.real(path)
        names = self._names(real) if real else None
        if real is None or names is None:
            raise _refused(path, "the image has no such directory", "correct the path")
        files: dict[str, dict[str, LoaderLibrary]] = {}  # SONAME -> name of a file -> library
        for name in sorted(filter(_LIBRARY.fullmatch, names), key=loader_cache.sort_key):
            if library := self._library(path, posixpath.join(real, name)):
                files.setdefault(library.name, {})[name] = library
        for soname, found_by_name in sorted(files.items()):
            if soname in found_by_name:
                yield found_by_name[soname]
            elif soname not in names:  # ldconfig links it to the last one
                yield replace(list(found_by_name.values())[-1], linked=True)
        if not files:
            raise _refused(path, "the loader would find no library in this directory", "name the one that has them")

    def _names(self, directory: str) -> set[str] | None:
        """Return the names in a directory; None where it is not there."""
        above = f"{directory.rstrip('/')}/"
        paths = [
            path for table in (self._wheels, self._links, self._copies) for path in table if path.startswith(above)
        ]
        try:
            below = os.listdir(self._on_disk(directory))
        except OSError:
            below = None
        if below is None and not paths:
            return None
        return {path.removeprefix(above).partition("/")[0] for path in paths} | set(below or ())

    def _library(self, directory: str, path: str) -> LoaderLibrary | None:
        """Return the library in the file at `path`; None for a file that the loader does not take."""
        real = self.real(path)
        if real is None:
            return None
        file, wheel = self._scan(real), self._wheels.get(real)
        if file is None or file.elf is None or file.elf.machine != _MACHINES[self._lock.platform]:
            return None
        name = file.elf.soname or posixpath.basename(path)
        return LoaderLibrary(name, posixpath.join(directory, name), real, file, wheel.name if wheel else None)

    def _scan(self, path: str) -> File | None:
        if copied := self._copies.get(path):
            return _scan_file(self._store.path(copied.digest))
        if wheel := self._wheels.get(path):
            site = site_packages(self._lock.python)
            return scan.scan_wheel(self._store, wheel, self._lock.python).files.get(relative(path, site))
        return _scan_file(self._on_disk(path))


def _scan_file(path: Path) -> File | None:
    """Return the scan of a file; None if it is not a regular file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            return examine(OnDisk(file.fileno(), status.st_size), size=status.st_size)
    except OSError:
        return None


def _refused(path: str, why: str, fix: str) -> LockError:
    return LockError(
        f"{path} cannot be searched for libraries", code="lock-ldconfig-invalid", where=path, why=why, fix=fix
    )
