"""Look up packages that are not shipped in the index while a question waits, and cache the metadata for a day.

Few releases are read, with short timeouts. If the index does not answer, the package stays unknown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

from packaging.specifiers import SpecifierSet

from imagegen.compat import metadata_file
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata
from imagegen.compat.torch_pins import TORCH
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, ImagegenError, MatrixError
from imagegen.core.net import Client, NotFoundError, package_index, wheel_metadata
from imagegen.core.net.package_index import DEFAULT, IndexLink
from imagegen.core.store.cache import Cache
from imagegen.core.types import parse_requirement
from imagegen.index_metadata import releases
from imagegen.index_metadata.wheel_modules import is_offline
from imagegen.oci.documents import digest_of

_SECONDS = 3.0  # for all packages of a question
_AT_MOST = 10  # releases of one package that its specifier admits
_PACKAGES = 8  # of one question
_MISSING = ""  # the record of a package that the index does not have
_CACHE = Cache("metadata", str)
_FORMAT = 2  # of the records: 2 has the extras that requested extras include


def look_up(
    requested: Mapping[str, str],
    context: Context,
    today: str,
    extras: Mapping[str, Collection[str]] | None = None,
    *,
    spread: bool = False,
) -> dict[str, PackageReleases]:
    """Return the packages of `requested` (normalised name -> PEP 440 specifier) that the index has.

    The newest releases are read, with `spread` some of all ages; if more are admitted, `since` is the oldest of those.
    A package is absent from the result if the index does not have it, or does not answer in time. `today` is a date,
    "2026-11-24": a record counts for one day. The requirements of `extras`, by package, are read too.
    """
    if is_offline(context.settings):
        return {}
    url = package_index.url_of(DEFAULT, context.settings)
    packages = {
        name: (PackageReleases(name, DEFAULT, None, None, tuple(sorted((extras or {}).get(name, ()))), {}), specifier)
        for name, specifier in list(requested.items())[:_PACKAGES]
    }
    keys = {name: _key(url, package, text, today, spread=spread) for name, (package, text) in packages.items()}
    records = {name: _CACHE.get(context.store, key) for name, key in keys.items()}
    texts = {name: record for name, record in records.items() if record is not None}
    if url and (missing := [name for name in keys if name not in texts]):
        context.progress.say(f"asking {DEFAULT} for {', '.join(missing)}")
        requests = [packages[name] for name in missing]
        for name, document in _fetch(requests, url, context.settings, today, spread=spread).items():
            texts[name] = document
            _save(context, keys[name], document)
    return {name: metadata_file.parse(text.encode(), name=name) for name, text in texts.items() if text != _MISSING}


def _key(url: str | None, package: PackageReleases, specifier: str, today: str, *, spread: bool) -> str:
    return digest_of(json.dumps([_FORMAT, url, package.name, specifier, today, spread, *package.extras]).encode())


def _save(context: Context, key: str, text: str) -> None:
    try:
        _CACHE.put(context.store, key, text)
    except ImagegenError as error:
        context.progress.say(f"metadata of packages is not saved: {error.what}")


def _fetch(
    requested: Sequence[tuple[PackageReleases, str]], url: str, settings: Settings, today: str, *, spread: bool
) -> dict[str, str]:
    """Return name -> the file of its metadata; a package whose reading failed is absent."""
    deadline = time.monotonic() + _SECONDS
    with Client(settings, attempts=1, timeout=(_SECONDS / 2, _SECONDS / 2), patience=_SECONDS) as client:
        pool = ThreadPoolExecutor(len(requested) + _AT_MOST, thread_name_prefix="on-demand")  # packages, and releases
        try:
            jobs = {
                package.name: pool.submit(_read, package, specifier, client, pool, url, today, deadline, spread=spread)
                for package, specifier in requested
            }
            return {name: text for name, job in jobs.items() if (text := job.result()) is not None}
        finally:
            client.close()
            pool.shutdown(cancel_futures=True)


def _read(
    package: PackageReleases,
    specifier: str,
    client: Client,
    pool: Executor,
    url: str,
    today: str,
    deadline: float,
    *,
    spread: bool,
) -> str | None:
    name = package.name

    def fetch(link: IndexLink, version: str) -> wheel_metadata.Metadata:
        if time.monotonic() > deadline:
            raise FetchError(f"{name} took too long", code="fetch-too-slow")
        return wheel_metadata.fetch(client, link, name, version)

    try:
        project = package_index.project(client, url, name)
        links, oldest = releases.select(name, project, SpecifierSet(specifier), _AT_MOST, spread=spread)
        text = _MISSING
        if links:
            known = replace(releases.read(package, links, fetch, today, pool=pool), since=oldest)
            text = metadata_file.dumps(_witnesses(known) if spread else known).decode()
            metadata_file.parse(text.encode(), name=name)
    except NotFoundError:
        return _MISSING
    except (FetchError, MatrixError):
        return None
    return text


def _witnesses(package: PackageReleases) -> PackageReleases:
    """Return the package without releases of which the metadata does not show what they work with.

    These have only an sdist, or are compiled with a torch that they do not pin.
    """
    shown = {version: release for version, release in package.releases.items() if _shows_torch(release)}
    oldest = list(package.releases)[-1]
    return package if len(shown) == len(package.releases) else replace(package, releases=shown, since=oldest)


def _shows_torch(release: ReleaseMetadata) -> bool:
    required = [
        requirement for text in release.requires or () if (requirement := parse_requirement(text)).name == TORCH
    ]
    is_pinned = all(str(requirement.specifier).startswith("==") for requirement in required)
    return release.requires is not None and (is_pinned or any(tag.endswith("-any") for tag in release.wheels))
