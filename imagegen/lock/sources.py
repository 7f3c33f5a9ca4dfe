"""Fetch a file of a lock by hash from find-links places, extra indexes, its address or its index.

The hash decides, so any source will do. A find-links directory cannot change the built image.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, ReproducibilityError
from imagegen.core.net import Client, Missing, MissingFiles, NotFoundError, UnreachableError, package_index
from imagegen.core.net.package_index import IndexLink
from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import redact
from imagegen.lock.artifacts import plan_package
from imagegen.lock.interpreter import MIRROR, LockedInterpreter
from imagegen.lock.model import BUILT, GIT, INTERPRETER, LINKS, LOCAL, URL, LockedBuild, LockedFile, LockedWheel
from imagegen.oci.documents import digest_of
from imagegen.oci.registry.mirror import Mirror

_THREADS = 6
_LARGEST_INTERPRETER = 1 << 30  # bytes; the largest of python-build-standalone's stripped archives has 0.05 GB
# Where an index keeps its files, "https://files.example", by the digest of its address, of the alias where it has none
# here: as its last page showed it. With it, a file with a hint needs no page.
_FILE_HOSTS = Cache("file-host", str)

T = TypeVar("T")


@dataclass(frozen=True)
class RequiredFile:
    """A file and the distribution that it belongs to."""

    name: str
    file: LockedFile
    recipe: bool = False  # its hash is a recipe's, which locking again does not change

    @classmethod
    def of(cls, package: LockedWheel | LockedBuild) -> list[RequiredFile]:
        """Return the files that an index or the project must have, so that the package can be installed or made."""
        return [
            cls(artifact.package.name, artifact.about, isinstance(artifact.package, LockedBuild))
            for artifact in plan_package(package).walk()
            if artifact.package and isinstance(artifact.about, LockedFile) and artifact.about.index != GIT
        ]


class Finder:
    """Fetches files from the first source that has them. Thread-safe; every page is read once."""

    def __init__(self, client: Client, store: Store, settings: Settings, meter: Meter) -> None:
        self._client, self._store, self._settings, self._meter = client, store, settings, meter
        self._mirror = Mirror.of(settings, client)
        self._pages: dict[tuple[str, str], Future[list[IndexLink]]] = {}
        self._dead: dict[str, str] = {}  # location -> why it is not asked again
        self._lock = threading.Lock()

    def fetch(self, required: RequiredFile) -> None:
        """Fetch the file into the store. Raises MissingFiles with all sources that were tried."""
        if self._store.intact(required.file.digest, required.file.size):
            self._meter.advance(required.file.estimate)
            return
        tried: list[str] = []
        if self._mirrored(required, tried):
            return
        requested: set[str] = set()  # a hint and its page often name one address
        for url in self._addresses(required, tried):
            if url in requested:
                continue
            requested.add(url)
            try:
                size = required.file.size
                if size is None:
                    size = _bounded(required.file, self._client.size(url), url)
                self._client.download(url, self._store, sha256=required.file.sha256, size=size, meter=self._meter)
            except FetchError as error:
                tried.append(error.summary)
            else:
                return
        raise MissingFiles([missing(required, tried)], self._store.root)

    def _mirrored(self, required: RequiredFile, tried: list[str]) -> bool:
        if self._mirror is None:
            return False
        try:
            size = required.file.size
            if size is None and (mirrored_size := self._mirror.size(required.file.digest)) is not None:
                size = _bounded(required.file, mirrored_size, str(self._mirror))
            has_file = size is not None and self._mirror.take(required.file.digest, size, self._store, self._meter)
        except FetchError as error:
            tried.append(error.summary)
            return False
        if not has_file:
            tried.append(f"{self._mirror}: it has no such file")
        return has_file

    def _addresses(self, required: RequiredFile, tried: list[str]) -> Iterator[str]:
        """Yield addresses that may have the file, best first; add to `tried` why a source does not have it."""
        for link in self._settings.find_links:
            links = self._listing(link, "", None, tried)
            yield from self._matching(links, required, link, tried)
        is_interpreter = required.file.index == INTERPRETER
        for index_url in () if is_interpreter else self._settings.extra_indexes:
            links = self._listing(index_url.rstrip("/"), required.name, required.name, tried)
            yield from self._matching(links, required, index_url, tried)
        if required.file.url:
            if is_interpreter and (mirror := self._settings.env.get(MIRROR)):
                # As in uv, the path below .../releases/download is appended to the mirror's address, percent-encoded.
                yield f"{mirror.rstrip('/')}/{'/'.join(required.file.url.split('/')[-2:])}"
            yield required.file.url
        if required.file.index == LOCAL:
            tried.append("the project: the path in the matrix does not exist")
        if required.file.index not in (URL, LINKS, BUILT, LOCAL, INTERPRETER):
            yield from self._in_index(required, tried)

    def _in_index(self, required: RequiredFile, tried: list[str]) -> Iterator[str]:
        """Yield addresses in the file's index from the hint on the file host of an earlier run, the hint on a page's
        file host, and links of the project's page.
        """
        address = self._settings.index_urls.get(required.file.index, required.file.index)
        key = digest_of(address.encode())
        remembered_host = _FILE_HOSTS.get(self._store, key) if required.file.path else None
        if remembered_host:
            yield f"{remembered_host}/{required.file.path}"
        url = package_index.url_of(required.file.index, self._settings)
        if url is None:
            tried.append(f"index {required.file.index}: no address is known for it")
            return
        if required.file.path:
            # The page of whichever project came first shows the index's file host.
            links = self._listing(url, "", required.name, [])
            if links and (host := package_index.file_host(links)):
                if host != remembered_host and "@" not in host:  # no credentials in the store
                    _FILE_HOSTS.put(self._store, key, host)
                yield f"{host}/{required.file.path}"
        links = self._listing(url, required.name, required.name, tried)
        yield from self._matching(links, required, url, tried)

    def _listing(self, location: str, name: str, project: str | None, tried: list[str]) -> list[IndexLink] | None:
        """Return the links of a project's page in an index, or of a find-links location if `project` is None.

        They are read once for each (location, name). If that fails, the reason is added to `tried`.
        """
        if location in self._dead:
            tried.append(self._dead[location])
            return None
        with self._lock:
            future = self._pages.get((location, name))
            mine = future is None
            if future is None:
                future = self._pages[location, name] = Future()
        if mine:
            try:
                future.set_result(
                    package_index.project(self._client, location, project)
                    if project
                    else package_index.find_links(self._client, location)
                )
            except Exception as error:  # noqa: BLE001 - raised again below, in every thread that waits
                future.set_exception(error)
        try:
            return future.result()
        except UnreachableError as error:
            self._dead[location] = f"{redact(location)}: {error.why or error.what}"
            tried.append(self._dead[location])
            return None
        except NotFoundError:
            tried.append(_lacks(location))
            return None
        except (FetchError, OSError) as error:
            tried.append(error.summary if isinstance(error, FetchError) else f"{redact(location)}: {error.strerror}")
            return None

    @staticmethod
    def _matching(
        links: list[IndexLink] | None, required: RequiredFile, location: str, tried: list[str]
    ) -> Iterator[str]:
        """Yield links with the hash, or with the file name if the source states no hash."""
        if links is None:
            return
        fitting = [
            link.url
            for link in links
            if link.sha256 == required.file.sha256 or (link.sha256 is None and link.filename == required.file.filename)
        ]
        if not fitting:
            other = any(link.filename == required.file.filename for link in links)
            tried.append(f"{redact(location)}: has another file of this name" if other else _lacks(location))
        yield from fitting


def in_parallel(tasks: Sequence[Callable[[], T]], client: Client) -> Iterator[T]:
    """Yield results in the order of completion. All tasks run; missing files are raised at the end, as one
    MissingFiles.

    Any other error ends the iteration, and so does an error of its consumer: downloads in progress are then stopped.
    """
    lacking: MissingFiles | None = None
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")
    try:
        for future in as_completed([pool.submit(task) for task in tasks]):
            try:
                result = future.result()
            except MissingFiles as error:
                lacking = lacking.also(error.files) if lacking else error
            else:
                yield result
    finally:
        client.close()
        pool.shutdown(cancel_futures=True)
    if lacking:
        raise lacking


def fetch_files(label: str, files: Sequence[RequiredFile], context: Context) -> None:
    """Fetch the files into the store. Raises MissingFiles with all missing files."""
    total = sum(required.file.estimate for required in files)
    with Client(context.settings) as client, context.progress.meter(label, total) as meter:
        finder = Finder(client, context.store, context.settings, meter)
        for _ in in_parallel([partial(finder.fetch, required) for required in files], client):
            pass


def missing(required: RequiredFile, tried: Sequence[str] = ()) -> Missing:
    """Return the file as one that the store lacks."""
    links = "put it into a directory that PIP_FIND_LINKS names"
    fixes = {
        URL: f"{links}, or reach {required.file.url}",
        LINKS: f"{links}: only such places have had it",
        BUILT: "`imagegen wheels build` makes it again",
        INTERPRETER: f"put {required.file.filename} into a directory that PIP_FIND_LINKS names, "
        f"set {MIRROR} to a mirror of python-build-standalone, or reach {required.file.url}",
    }
    again = "correct its recipe under wheels/, and lock again" if required.recipe else "`imagegen lock` looks again"
    other = (
        "put wheels and sdists into a directory that PIP_FIND_LINKS names, or set "
        f"{package_index.variable(required.file.index)} to a mirror of the index; "
        f"where an index serves other bytes than the lock names, {again}"
    )
    fix = fixes.get(required.file.index, other)
    return Missing(required.file.filename, required.file.sha256, tuple(dict.fromkeys(tried)), fix)


def missing_commit(package: LockedWheel | LockedBuild, error: FetchError | None = None) -> Missing:
    """Return the archive of the package's commit as one that the store lacks. `error` says why it cannot be fetched."""
    assert package.git  # noqa: S101 - the callers have checked it
    name = f"{package.source.filename}, {package.git.url} at {package.git.commit}"
    fix = (error and error.fix) or "run this where that host can be reached"
    return Missing(name, package.source.sha256, (error.summary,) if error else (), fix)


def fetch_commit(package: LockedWheel | LockedBuild, context: Context) -> None:
    """Bring the archive of the package's commit, if it is made of one, into the store: from a mirror, or of the tree.

    Raises FetchError of a mirror, MissingFiles of the commit's repository, ReproducibilityError.
    """
    locked, file = package.git, package.source
    if locked is None or context.store.intact(file.digest, file.size) or mirrored(file, context):
        return
    submodules = package.submodules if isinstance(package, LockedBuild) else ()
    commit = git.TreeSource(locked.url, locked.commit, locked.tree, submodules=submodules, exclude=locked.exclude)
    try:
        archive = git.archive(commit, f"{package.name}-{package.version}", context)
    except FetchError as error:
        raise MissingFiles([missing_commit(package, error)], context.store.root) from error
    if archive.digest != file.digest:
        raise ReproducibilityError(
            f"{locked.url} at {locked.commit} gives another archive than the lock names",
            code="not-reproducible-archive",
            why=f"expected {file.digest}, got {archive.digest}, of the same tree {locked.tree}",
            fix="use the imagegen that wrote the lock, or lock again",
        )


def fetch_interpreter(locked: LockedInterpreter, context: Context) -> None:
    """Fetch a standalone interpreter's archive into the store. Raises MissingFiles with all sources that were tried."""
    if locked.file and not context.store.intact(locked.file.digest, None):
        required = RequiredFile(locked.name, locked.file.locked_file)
        fetch_files(f"fetching {locked.file.filename}", [required], context)


def _bounded(file: LockedFile, size: int, source: str) -> int:
    """Return the size that a source gives for a file whose size the lock does not name. Raises FetchError."""
    if file.index == INTERPRETER and size > _LARGEST_INTERPRETER:
        raise FetchError(
            f"{redact(source)} is not the expected file",
            code="fetch-digest-mismatch",
            why=f"no interpreter's archive has {size} bytes",
        )
    return size


def _lacks(location: str) -> str:
    return f"{redact(location)}: does not have it"


def mirrored(file: LockedFile, context: Context) -> bool:
    """Fetch a file that no index has from a private mirror; False if there is no mirror, or it lacks the file.

    Raises FetchError, StoreError.
    """
    with Client(context.settings) as client:
        mirror = Mirror.of(context.settings, client)
        if mirror is None:
            return False
        size = mirror.size(file.digest) if file.size is None else file.size
        if size is None:
            return False
        with context.progress.meter(file.filename, size) as meter:
            return mirror.take(file.digest, size, context.store, meter)
