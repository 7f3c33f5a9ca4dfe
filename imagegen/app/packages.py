"""The packages of all locks of a report: licence, day of upload and address, as far as this machine knows them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from imagegen.app.matrices import Matrices
from imagegen.audit.model import Licence
from imagegen.compare.difference import rank
from imagegen.core.net import package_index
from imagegen.lock.main_versions import reason
from imagegen.lock.model import LOCAL, Lock, LockedBuild, LockedFile, LockedWheel
from imagegen.lock.uv_resolve import UPLOADS
from imagegen.trust.licences import wheel_terms

_PAGES = "https://deps.dev/pypi"  # of releases on PyPI: licences, advisories, dependencies, and a link to the index


@dataclass(frozen=True)
class LockedPackage:
    """A version of a package from one source, and the cells whose locks pin it."""

    name: str
    version: str
    licence: str  # an SPDX expression or the package's own words, "" where none is known
    uploaded: str | None  # the day, "2026-07-03"
    age: int | None  # days from the upload to the time of the lock, of several locks the newest
    source: str  # "PyPI", "index pytorch-cpu", "the project", or an address
    link: str | None  # a page about it
    cells: tuple[str, ...]  # in the order of the locks


@dataclass(frozen=True)
class Pin:
    """A package on the page of a locked cell."""

    name: str
    version: str
    why: str


def packages_of(
    matrices: Matrices, locks: Iterable[Lock], licences: Mapping[str, Licence]
) -> tuple[LockedPackage, ...]:
    """Return the packages of the locks, by name and the newest version first.

    `licences` are those that are known, by the sha256 of a wheel. Days of upload come from the store and the harvested
    metadata; nothing is fetched. The locks may have the wheels of the wheelhouse instead of builds.
    """
    pins_by_source: dict[tuple[str, str, str], list[tuple[Lock, LockedWheel | LockedBuild]]] = {}
    pinned = (replace(part.lock, cell=whole.cell) for whole in locks for part in whole.environments)
    for lock in pinned:
        for package in lock.packages:
            key = package.name, package.version, source_of(package)[0]
            pins_by_source.setdefault(key, []).append((lock, package))
    rows = [_row(matrices, source, pins, licences) for (_, _, source), pins in pins_by_source.items()]
    return tuple(sorted(sorted(rows, key=lambda row: Version(row.version), reverse=True), key=lambda row: row.name))


def _row(
    matrices: Matrices, source: str, pins: list[tuple[Lock, LockedWheel | LockedBuild]], licences: Mapping[str, Licence]
) -> LockedPackage:
    date = dt.date.fromisoformat
    newest, package = max(pins, key=lambda pin: pin[0].as_of)
    uploaded = next(filter(None, (_uploaded(matrices, pinned) for _, pinned in pins)), None)
    licence = next(filter(None, (_licence(licences, lock, pinned) for lock, pinned in pins)), None)
    terms = wheel_terms(licence) if licence else None
    return LockedPackage(
        package.name,
        package.version,
        (terms.expression or ", ".join(terms.names)) if terms else "",
        uploaded,
        (date(newest.as_of[:10]) - date(uploaded)).days if uploaded else None,
        source,
        source_of(package)[1],
        tuple(dict.fromkeys(lock.cell for lock, _ in pins)),
    )


def _licence(licences: Mapping[str, Licence], lock: Lock, package: LockedWheel | LockedBuild) -> Licence | None:
    wheel = next(
        (candidate for candidate in lock.wheels if candidate.name == package.name), None
    )  # the compiled wheel of a build
    return licences.get(wheel.file.sha256) if wheel else None


def _file(package: LockedWheel | LockedBuild) -> LockedFile:
    """Return the file that an index or an address serves."""
    if isinstance(package, LockedBuild):
        return package.source
    return package.sdist.file if package.sdist else package.fetched


def _uploaded(matrices: Matrices, package: LockedWheel | LockedBuild) -> str | None:
    """Return the day on which the file was uploaded, else the day of the first file of its release."""
    file = _file(package)
    if day := UPLOADS.get(matrices.project.store, file.digest):
        return day
    harvested = matrices.knowledge_files.metadata.of(package.name)
    release = (
        harvested.package.releases.get(package.version) if harvested and harvested.package.index == file.index else None
    )
    return release.uploaded if release else None


def source_of(package: LockedWheel | LockedBuild) -> tuple[str, str | None]:
    """Return the source of a package in words, and the address of a page about it; None where there is none."""
    git = package.git
    file = _file(package)
    if git:
        return f"commit {git.commit[:12]}", _page(git.url)
    if file.url:
        return "a direct download", _page(file.url)
    if file.index == LOCAL:
        return "the project", None
    if file.index == package_index.DEFAULT:
        return "PyPI", f"{_PAGES}/{package.name}/{package.version}"
    return f"index {file.index}", None


def _page(url: str) -> str | None:
    """Return an address that a browser opens."""
    return url if url.startswith(("https://", "http://")) else None


def pins_of(lock: Lock) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
    """Return the packages that the matrix chooses, and their dependencies.

    If there are several environments, the packages of the default one come first. Packages that only another
    environment has, or has in another version, follow with the environment's name as prefix.
    """
    default, *other_environments = lock.environments
    versions = {package.name: package.release for package in default.lock.packages}
    prefixed = [("", package) for package in default.lock.packages]
    for other in other_environments:
        differing = (package for package in other.lock.packages if versions.get(package.name) != package.release)
        prefixed += [(f"{other.name}: ", pinned) for pinned in differing]
    pins = [(pinned, Pin(f"{prefix}{pinned.name}", pinned.release, reason(pinned))) for prefix, pinned in prefixed]
    chosen = sorted((pin for pinned, pin in pins if pinned.because), key=lambda pin: rank(pin.name))
    return tuple(chosen), tuple(pin for pinned, pin in pins if not pinned.because)
