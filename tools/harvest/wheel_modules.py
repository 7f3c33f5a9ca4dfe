"""Python modules of wheels on an index, read by ranges and cached on disk by path, CRC-32 and size.

No code of the wheels runs. A second run reads only releases and files that are new.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
import io
import itertools
import pickle
import re
import sqlite3
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.audit.api import Api
from imagegen.audit.api.exports import OPEN, Module, listed, parents
from imagegen.audit.api.import_time import ImportTime, import_time
from imagegen.audit.api.source import LONGEST, module_name
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, wheel_metadata
from imagegen.core.net.package_index import IndexLink
from tools.harvest.api import SINCE

T = TypeVar("T")
_PLATFORM = re.compile(r"any|(?:many)?linux.*_x86_64")
_INSTALLED = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")  # files that installers move to site-packages
_INTERPRETERS = ("py3", "cp312", "cp311", "cp310", "cp39", "cp38")  # a wheel for the first of these
_SMALL = 3 << 20  # bytes of a wheel that one request reads
_TABLE = re.compile(
    rb"sys\.modules|\bmodules\[|__path__|meta_path|_LazyModule"
)  # in packages whose modules may not be files
_PENDING = 500  # entries that one transaction writes
_READERS = ("exports", "getattrs", "import_time", "lookup", "source")  # files that decide the result for a source


def _digest_of_readers() -> str:
    sha256 = hashlib.sha256()
    for reader in _READERS:
        sha256.update((Path(inspect.getfile(Api)).parent / f"{reader}.py").read_bytes())
    return sha256.hexdigest()[:12]


class Cache:
    """Values in a file of a directory; with None, in memory."""

    def __init__(self, directory: Path | None) -> None:
        if directory:
            directory.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(
            directory / "modules.sqlite" if directory else ":memory:", check_same_thread=False
        )
        self._database.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
        self._database.execute("PRAGMA synchronous=OFF")
        self._lock = threading.Lock()
        self._pending = 0
        self.readers = _digest_of_readers()

    def of(self, key: str, compute: Callable[[], T]) -> T:
        """Return the value of the key, which is computed once."""
        value: T | None = self.get(key)
        if value is None:
            value = compute()
            self.put(key, value)
        return value

    def get(self, key: str) -> Any:
        with self._lock:
            row = self._database.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return pickle.loads(zlib.decompress(row[0])) if row else None  # noqa: S301 - this program's own file

    def put(self, key: str, value: object) -> None:
        raw = zlib.compress(pickle.dumps(value), 1)
        with self._lock:
            self._database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (key, raw))
            self._pending += 1
            if self._pending >= _PENDING:
                self._commit()

    def close(self) -> None:
        with self._lock:
            self._commit()
            self._database.close()

    def _commit(self) -> None:
        self._database.commit()
        self._pending = 0


class Member(NamedTuple):
    """A Python file or a compiled module of a wheel."""

    filename: str  # in the archive
    crc: int
    size: int
    offset: int  # in the archive

    def key(self, kind: str) -> str:
        return f"{kind} {self.filename} {self.crc:08x} {self.size}"


def wheels_of(links: Iterable[IndexLink], since: dt.date = SINCE) -> dict[str, IndexLink]:
    """Return a wheel for each release since a day that is neither yanked nor a pre-release, the oldest first."""
    by_version: dict[Version, tuple[int, IndexLink]] = {}
    for link in links:
        try:
            _, version, _, tags = parse_wheel_filename(link.filename)
        except ValueError:
            continue
        if link.yanked or version.is_prerelease or (link.uploaded and link.uploaded < since):
            continue
        interpreters = {tag.interpreter for tag in tags if _PLATFORM.fullmatch(tag.platform) and tag.abi[-1] != "t"}
        if not interpreters:
            continue
        ranks = [rank for rank, name in enumerate(_INTERPRETERS) if name in interpreters]
        rank = (
            -1 if any(name.startswith("py3") or name == "py2.py3" for name in interpreters) else min(ranks, default=9)
        )
        if version not in by_version or rank < by_version[version][0]:
            by_version[version] = rank, link
    return {str(version): by_version[version][1] for version in sorted(by_version)}


class WheelModules(Mapping[str, Module]):
    """The modules of a wheel by name, with the namespace packages above them; each is read when it is looked up."""

    def __init__(self, cache: Cache, client: Client, link: IndexLink) -> None:
        self._cache, self._client, self._link = cache, client, link
        self._archive: zipfile.ZipFile | None = None
        self._stack = ExitStack()
        self._read: dict[str, ImportTime] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        self._stack.close()
        self._archive = None
        self._read.clear()

    @cached_property
    def members(self) -> dict[str, Member]:
        """The files that are modules, by path below site-packages."""
        return self._cache.of(f"files {self._link.filename} {self._link.sha256}", self._list)

    @cached_property
    def paths(self) -> dict[str, str]:
        """The path of each module. A package hides a module of the same name."""
        paths: dict[str, str] = {}
        for path in self.members:
            name = module_name(path)
            if name and (name not in paths or path.endswith("__init__.py")):
                paths[name] = path
        return paths

    @cached_property
    def namespaces(self) -> frozenset[str]:
        return frozenset(parent for name in self.paths for parent in parents(name)) - self.paths.keys()

    @cached_property
    def shallowest(self) -> frozenset[str]:
        """The modules that only namespace packages are above."""
        return frozenset(name for name in self.paths if not any(parent in self.paths for parent in parents(name)))

    def read(self, name: str) -> ImportTime:
        """Return a module; one without a source may define any name."""
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def prefetch(self, names: Iterable[str]) -> None:
        """Read modules in the order of the archive, so that a request reads several."""
        paths = (self.paths[name] for name in names if name in self.paths and name not in self._read)
        for path in sorted(paths, key=lambda path: self.members[path].offset):
            self.read(str(module_name(path)))

    def missing(self, name: str, modules: int) -> str | None:
        """Return the first part of a dotted name that does not exist; None where all of it exists, or may."""
        return self._missing_module(name, modules) or _WheelApi(self).missing(name, modules)

    def _missing_module(self, name: str, modules: int) -> str | None:
        """Return the first module that an import statement names and that is not a file, nor may be another module.

        An attribute of a package is not a module, unless code of a package above it changes the table of modules.
        """
        for above, module in itertools.pairwise([*parents(name), name][:modules]):
            if not self.paths.get(above, "").endswith(".py"):
                return None
            if module not in self:
                packages = [part for part in (*parents(above), above) if part in self.paths]
                return None if any(_TABLE.search(self._source(package)) for package in packages) else module
        return None

    def listed_below(self, package: str) -> frozenset[str]:
        """Return the names that modules below a package may list for it."""

        def compute() -> frozenset[str]:
            inside = sorted(
                (member for path, member in self.members.items() if self._is_below(path, package)),
                key=lambda member: member.offset,
            )
            return frozenset[str]().union(
                *(self._cache.of(m.key("listed"), lambda m=m: listed(self._bytes(m))) for m in inside)  # type: ignore[misc]
            )

        return self._cache.of(f"below {self._link.filename} {self._link.sha256} {package}", compute)

    @staticmethod
    def _is_below(path: str, package: str) -> bool:
        return path.endswith(".py") and (module_name(path) or "").startswith(f"{package}.")

    def _load(self, name: str) -> ImportTime:
        path = self.paths.get(name, "")
        member = self.members[path] if path.endswith(".py") else None
        if member is None or member.size > LONGEST:
            return ImportTime()
        key = member.key(f"module {self._cache.readers}")
        return self._cache.of(key, lambda: import_time(path, self._source(name)))

    def _source(self, name: str) -> bytes:
        member = self.members[self.paths[name]]
        return self._cache.of(member.key("source"), lambda: self._bytes(member))

    def _list(self) -> dict[str, Member]:
        with self._reading():
            infos = self._opened().infolist()
        return {
            path: Member(info.filename, info.CRC, info.file_size, info.header_offset)
            for info in infos
            if module_name(path := _INSTALLED.sub("", info.filename))
        }

    def _bytes(self, member: Member) -> bytes:
        with self._lock, self._reading():
            opened = self._opened()
            return wheel_metadata.bounded(opened, opened.getinfo(member.filename))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise FetchError for a damaged archive, as `wheel_metadata.archive` does."""
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, KeyError) as error:
            what = f"{self._link.filename} cannot be read in parts"
            raise FetchError(what, code="fetch-no-ranges", why=str(error)) from error

    def _opened(self) -> zipfile.ZipFile:
        if self._archive is None:
            size = self._client.size(self._link.url)
            if size <= _SMALL:
                self._archive = zipfile.ZipFile(io.BytesIO(self._client.piece(self._link.url, 0, size)))
            else:
                self._archive = self._stack.enter_context(wheel_metadata.archive(self._client, self._link))
        return self._archive

    def __getitem__(self, name: str) -> Module:
        if name in self.paths:
            return self.read(name).defined
        if name in self.namespaces:
            return OPEN
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self.paths or name in self.namespaces

    def __iter__(self) -> Iterator[str]:
        yield from self.paths
        yield from self.namespaces

    def __len__(self) -> int:
        return len(self.paths) + len(self.namespaces)


class _WheelApi(Api):
    """Looks up names without reading all modules below a package."""

    modules: WheelModules

    def _is_below(self, package: str, name: str) -> bool:
        return name in self.modules.listed_below(package)
