"""Read package metadata from an index, for data files that `why` and `matrix` use without network.

No package's code runs, and no wheel is fetched whole. The index's page names the files, and the metadata of one wheel
per release has its requirements. Requirements that only an sdist could give stay unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import MappingProxyType

from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.compat import metadata_file
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata
from imagegen.core.config import Settings
from imagegen.core.errors import ErrorGroup, FetchError, ImagegenError, MatrixError
from imagegen.core.net import Client, NotFoundError, package_index, wheel_metadata
from imagegen.core.net.package_index import IndexLink
from imagegen.core.types import parse_requirement
from imagegen.index_metadata import releases

_THREADS = 6  # packages at once, each with one request at a time


class HarvestErrors(ErrorGroup, FetchError):
    """All packages whose metadata could not be read."""


def harvest(
    requested: Sequence[PackageReleases],
    settings: Settings,
    today: str,
    pinned: Mapping[str, Collection[Version]] = MappingProxyType({}),
) -> Iterator[PackageReleases]:
    """Yield each package with its releases of today, in the order of completion.

    All are tried; failures are raised at the end, as HarvestErrors. `today` is a date, "2026-11-21". `pinned` has the
    pre-releases, by package, that are kept because others require them.
    """
    errors: list[ImagegenError] = []
    with Client(settings) as client:
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="harvest")
        try:
            jobs = (
                pool.submit(_one, package, client, settings, today, pinned.get(package.name, ()))
                for package in requested
            )
            for future in as_completed(list(jobs)):
                try:
                    yield future.result()
                except FetchError as error:
                    errors.append(error)
        finally:
            client.close()
            pool.shutdown(cancel_futures=True)
    if errors:
        raise HarvestErrors(sorted(errors, key=str))


def _one(
    requested: PackageReleases, client: Client, settings: Settings, today: str, pinned: Collection[Version]
) -> PackageReleases:
    try:
        return _read(requested, client, settings, today, pinned)
    except FetchError as error:
        raise FetchError(
            f"{requested.name} is not harvested", code="fetch-not-harvested", why=_reason(error), fix=error.fix
        ) from error


def _read(
    requested: PackageReleases, client: Client, settings: Settings, today: str, pinned: Collection[Version]
) -> PackageReleases:
    url = package_index.url_of(requested.index, settings)
    if url is None:
        fix = f"{package_index.variable(requested.index)} gives it one"
        raise FetchError(f"no address is known for the index {requested.index}", code="fetch-no-index", fix=fix)
    try:
        links = package_index.project(client, url, requested.name)
    except NotFoundError as error:
        raise FetchError(f"the index {requested.index} has no package of this name", code="fetch-no-package") from error

    def fetch(link: IndexLink, version: str) -> wheel_metadata.Metadata:
        return wheel_metadata.fetch(client, link, requested.name, version)

    package = releases.read(requested, links, fetch, today, pinned)
    try:
        return metadata_file.parse(metadata_file.dumps(package), name=requested.name)
    except MatrixError as error:  # only a hostile index has a requirement of a megabyte
        raise FetchError(
            "the metadata of the index cannot be stored", code="fetch-index-invalid", why=error.why
        ) from error


def _reason(error: FetchError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what


def pinned_prereleases(packages: Iterable[PackageReleases]) -> dict[str, frozenset[Version]]:
    """Return package -> pre-releases that releases of the packages require exactly, as `transformers==5.0.0rc0`."""
    texts = {text for package in packages for release in package.releases.values() for text in _requirements(release)}
    prereleases: dict[str, set[Version]] = {}
    for parsed in map(parse_requirement, sorted(texts)):
        pins = (clause.version for clause in parsed.specifier if clause.operator == "==" and "*" not in clause.version)
        if early := {version for version in map(Version, pins) if version.is_prerelease}:
            prereleases.setdefault(canonicalize_name(parsed.name), set()).update(early)
    return {name: frozenset(versions) for name, versions in prereleases.items()}


def _requirements(release: ReleaseMetadata) -> Iterator[str]:
    yield from release.requires or ()
    for added in release.extras.values():
        yield from added
