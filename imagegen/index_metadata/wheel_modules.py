"""The Python modules of releases on an index, read by ranges of their wheels, or from the sdist if there is no wheel.

The store keeps the list of the modules of a release.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import BytesIO

from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from imagegen.audit.api.source import LONGEST
from imagegen.audit.model import File, Package
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.core.net import Client, package_index, wheel_metadata
from imagegen.core.net.package_index import DEFAULT, IndexLink
from imagegen.core.store.cache import Cache
from imagegen.core.wheel_target import WheelTarget
from imagegen.index_metadata.stored_modules import StoredModules
from imagegen.oci.documents import digest_of

OFFLINE = "UV_OFFLINE"  # uv's variable: no index is asked
_LONGEST_SDIST = 32 << 20  # bytes; deepspeed's has 1.5 MB, flash-attn's 8 MB
_LONGEST_UNPACKED = 256 << 20  # bytes of an sdist's archive that are read
_SAID = 20 << 20  # bytes; more is said before it is read
_INSTALLED = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")


@dataclass(frozen=True)
class WheelFiles:
    """A wheel or sdist on the index, and the sizes in bytes of its modules in the archive, by path when installed."""

    filename: str
    url: str
    sha256: str
    modules: dict[str, int]

    @property
    def link(self) -> IndexLink:
        return IndexLink(self.filename, self.url, self.sha256)

    @property
    def source_size(self) -> int:
        """The bytes of its sources in the archive."""
        return sum(size for path, size in self.modules.items() if path.endswith(".py"))


_FILES = Cache("wheel-files", WheelFiles)


class IndexModules(StoredModules):
    """Reads the modules of packages that `package` has returned. Methods raise FetchError."""

    def __init__(self, client: Client, context: Context, target: WheelTarget) -> None:
        super().__init__(context.store)
        self._client, self._context, self._target = client, context, target
        self._offline = is_offline(context.settings)
        self._opened = ExitStack()
        self._files: dict[str, WheelFiles] = {}  # by package, as the following
        self._archives: dict[str, tuple[zipfile.ZipFile, Mapping[str, zipfile.ZipInfo]]] = {}
        self._sdists: dict[str, dict[str, bytes]] = {}  # their sources by path

    def package(self, name: str, version: str) -> Package | None:
        """Return a release with the modules of the wheel that an installer takes; None if it is not available."""
        try:
            files = self._wheel_files(name, version)
        except FetchError:
            return None
        if files is None:
            return None
        self._files[name] = files
        return Package(name, version, dict.fromkeys(files.modules, File(0)))

    def _wheel_files(self, name: str, version: str) -> WheelFiles | None:
        url = package_index.url_of(DEFAULT, self._context.settings)
        key = digest_of(f"{url}\n{name}\n{version}\n{self._target.python}\n{self._target.machine}".encode())
        files = _FILES.get(self._context.store, key)
        if files is None and url and not self._offline and (link := self._link(url, name, version)) and link.sha256:
            if link.filename.endswith(".whl"):
                sizes = {path: info.compress_size for path, info in self._members(name, link).items()}
            else:
                sizes = {path: len(source) for path, source in self._sdist(name, link).items()}
            modules = {path: size for path, size in sizes.items() if path.endswith((".py", ".so"))}
            files = WheelFiles(link.filename, link.url, link.sha256, modules)
            _FILES.put(self._context.store, key, files)
        return files

    def wheel_hash(self, name: str) -> str:
        """Return the wheel's sha256."""
        return self._files[name].sha256

    def source(self, name: str, path: str) -> bytes | None:
        """Return a file of the wheel, fetched as a range of it."""
        files = self._files[name]
        if not files.filename.endswith(".whl"):
            return self._sdist(name, files.link).get(path)
        member = self._members(name, files.link).get(path)
        if member is None or member.file_size > (LONGEST if path.endswith(".py") else wheel_metadata.LONGEST):
            return None
        try:
            return wheel_metadata.bounded(self._archives[name][0], member)
        except wheel_metadata.DAMAGED as error:
            raise FetchError(
                f"{files.filename} cannot be read in parts", code="fetch-no-ranges", why=str(error)
            ) from error

    def sources(self, name: str, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield files of the wheel, of which few requests fetch all."""
        files = self._files[name]
        if files.filename.endswith(".whl"):
            members = self._members(name, files.link)
            wheel_metadata.prefetch(self._archives[name][0], [members[path] for path in paths if path in members])
        return super().sources(name, paths)

    def announce(self) -> None:
        """Say how many bytes may be read, if they are many."""
        sizes = {name: files.source_size for name, files in self._files.items() if not self.modules(name)}
        if sum(sizes.values()) > _SAID:
            size = sum(sizes.values()) >> 20
            self._context.progress.say(f"reading the sources of {', '.join(sorted(sizes))}: up to {size} MB")

    def close(self) -> None:
        """Close the archives and store the modules that were read."""
        self._opened.close()
        super().close()

    def _link(self, url: str, name: str, version: str) -> IndexLink | None:
        links = package_index.project(self._client, url, name)
        released = [link for link in links if _version(link.filename) == Version(version)]
        wheels = [(link.filename, link) for link in released if link.filename.endswith(".whl")]
        sdists = [link for link in released if link.filename.endswith(".tar.gz")]
        return self._target.best(wheels) if wheels else next(iter(sdists), None)

    def _sdist(self, name: str, link: IndexLink) -> dict[str, bytes]:
        """Return the sources of an sdist, by path below its directory or src."""
        if name not in self._sdists:
            if self._offline:
                raise FetchError(f"{link.filename} is not read offline", code="fetch-offline")
            if self._client.size(link.url) > _LONGEST_SDIST:
                raise FetchError(f"{link.filename} is longer than {_LONGEST_SDIST >> 20} MiB", code="fetch-missing")
            archive = self._client.get(link.url)
            if hashlib.sha256(archive).hexdigest() != link.sha256:
                raise FetchError(f"{link.filename} cannot be used", why="its sha256 differs from the index")
            self._sdists[name] = sdist_sources(archive)
        return self._sdists[name]

    def _members(self, name: str, link: IndexLink) -> Mapping[str, zipfile.ZipInfo]:
        if name not in self._archives:
            if self._offline:
                raise FetchError(f"{link.filename} is not read offline", code="fetch-offline")
            archive = self._opened.enter_context(wheel_metadata.archive(self._client, link))
            members = {_INSTALLED.sub("", info.filename): info for info in archive.infolist()}
            self._archives[name] = archive, members
        return self._archives[name][1]


def is_offline(settings: Settings) -> bool:
    """Return whether the user forbids to ask an index."""
    return settings.env.get(OFFLINE, "").lower() in {"1", "true", "yes", "on"}


def sdist_sources(archive: bytes) -> dict[str, bytes]:
    """Return the Python sources of an sdist by path, without its directory and a src below it.

    Sources of a damaged archive, or after too many bytes, are left out.
    """
    sources: dict[str, bytes] = {}
    allowance = Allowance(contents=_LONGEST_UNPACKED)
    with suppress(*DAMAGED, OSError, zlib.error), tarfile.open(fileobj=BytesIO(archive), tarinfo=Bounded) as tar:
        for member in members(tar):
            if not allowance.take(member.size, member.name):
                break
            path = member.name.partition("/")[2].removeprefix("src/")
            file = tar.extractfile(member) if member.isreg() and member.size <= LONGEST else None
            if file and path.endswith(".py"):
                sources[path] = file.read()
    return sources


def _version(filename: str) -> Version | None:
    parse_filename = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
    try:
        return parse_filename(filename)[1]
    except ValueError:
        return None
