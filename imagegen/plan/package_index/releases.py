"""Read a package's releases from an index, each with the metadata of one of its wheels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import (
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from imagegen.core.errors import FetchError
from imagegen.core.net.package_index import IndexLink
from imagegen.core.text import cut
from imagegen.core.types import LONGEST_REQUIREMENT, parse_requirement
from imagegen.plan.matrix.metadata import PackageReleases, ReleaseMetadata, holds
from imagegen.plan.package_index.wheel_metadata import Metadata

# Images are for Linux on these machines; what can be said of others alone is left out.
_MACHINES = ("x86_64", "aarch64")
_PLATFORM = re.compile(rf"any|(?:many)?linux.*_(?:{'|'.join(_MACHINES)})")
_MOST = 2000  # requirements of a release; vllm has some 150
_PYTHONS = range(8, 20)  # minor versions of Python 3 in which a marker may hold
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit")


@dataclass(frozen=True)
class _Wheel:
    link: IndexLink
    build: tuple[int, str] | tuple[()]
    tags: frozenset[Tag]

    @property
    def rank(self) -> tuple[object, ...]:
        """The one whose metadata is read ranks highest: x86_64, rebuilt last, for the newest ordinary CPython."""
        machines = {_machine(tag) for tag in self.tags}
        python = max(
            (int(tag.interpreter[3:] or 0) for tag in self.tags if re.fullmatch(r"cp3\d+", tag.interpreter)), default=0
        )
        threaded = any(tag.abi.endswith("t") for tag in self.tags)
        place = [each in machines for each in ("x86_64", "any", "aarch64")]
        return (place, self.build, not threaded, python, self.link.filename)


@dataclass
class _Found:
    """The files of one version."""

    wheels: list[_Wheel] = field(default_factory=list)
    sdists: list[IndexLink] = field(default_factory=list)
    links: list[IndexLink] = field(default_factory=list)  # all of them, also those for other systems


def read(
    requested: PackageReleases,
    links: Iterable[IndexLink],
    metadata: Callable[[IndexLink, str], Metadata],
    today: str,
    pinned: Collection[Version] = (),
) -> PackageReleases:
    """`requested` with the releases that the links show; `metadata` reads that of a wheel of a version.

    `pinned` are pre-releases that other packages require, and that are kept for that. Raises FetchError for a page
    without any release, and where the metadata of one cannot be used.
    """
    versions = _versions(requested, _by_version(requested.name, links), pinned)
    if not versions:
        since = f" since {requested.since}" if requested.since else ""
        raise FetchError(f"the index has no release of {requested.name}{since} for Linux", code="fetch-no-release")
    releases = {str(version): _release(requested, str(version), found, metadata) for version, found in versions.items()}
    ordered = {version: releases[version] for version in sorted(releases, key=Version, reverse=True)}
    return PackageReleases(requested.name, requested.index, today, requested.since, requested.extras, ordered)


def newest(package: str, links: Iterable[IndexLink], within: SpecifierSet, at_most: int) -> list[IndexLink]:
    """Return the links of the newest releases that the specifier admits; pre-releases only if there is nothing else."""
    found = {
        version: files
        for version, files in _by_version(package, links).items()
        if within.contains(version, prereleases=True)
    }
    final = [version for version in found if not version.is_prerelease] or list(found)
    return [link for version in sorted(final, reverse=True)[:at_most] for link in found[version].links]


def _by_version(package: str, links: Iterable[IndexLink]) -> dict[Version, _Found]:
    found: dict[Version, _Found] = {}
    for link in links:
        try:
            if link.filename.endswith(".whl"):
                name, version, build, tags = parse_wheel_filename(link.filename)
            else:
                (name, version), build, tags = parse_sdist_filename(link.filename), (), frozenset()
        except ValueError:  # eggs, installers, and other formats that no installer supports any more
            continue
        if name != package:
            continue
        each = found.setdefault(version, _Found())
        each.links.append(link)
        if not tags:
            each.sdists.append(link)
        elif any(_PLATFORM.fullmatch(tag.platform) and not tag.interpreter.startswith("pp") for tag in tags):
            each.wheels.append(_Wheel(link, build, tags))
    return {version: each for version, each in found.items() if each.wheels or each.sdists}


def _versions(
    requested: PackageReleases, found: dict[Version, _Found], pinned: Collection[Version]
) -> dict[Version, _Found]:
    """Return the versions from `since` on; pre-releases only if there is nothing else, or if they are pinned."""
    kept = {each: files for each, files in found.items() if requested.since is None or each >= Version(requested.since)}
    if all(each.is_prerelease for each in kept):
        return kept
    return {each: files for each, files in kept.items() if not each.is_prerelease or each in pinned}


def _release(
    requested: PackageReleases, version: str, found: _Found, metadata: Callable[[IndexLink, str], Metadata]
) -> ReleaseMetadata:
    days = sorted(str(link.uploaded) for link in found.links if link.uploaded)
    wheel = max(found.wheels, key=lambda each: each.rank, default=None)
    read = metadata(wheel.link, version) if wheel else None
    try:
        python = _specifier(read.python if read else found.sdists[0].python)
        plain, extras = _split(requested.extras, read or Metadata((), ""))
    except (ValueError, RecursionError) as error:
        file = (wheel.link if wheel else found.sdists[0]).filename
        raise FetchError(
            f"the metadata of {file} cannot be used", code="fetch-metadata-invalid", why=str(error)
        ) from error
    return ReleaseMetadata(
        version=version,
        uploaded=days[0] if days else None,
        python=python,
        requires=plain if wheel else None,
        wheels=tuple(sorted({_tag(each.link.filename) for each in found.wheels})),
        extras=extras,
        cuda=cuda_of(plain),
        yanked=all(link.yanked for link in found.links),
    )


def _split(extras: Iterable[str], read: Metadata) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the requirements of a plain install on Linux, and what each of the extras adds, if the release has it."""
    if len(read.requires) > _MOST:
        raise ValueError(f"it has {len(read.requires)} requirements")
    parsed = {_canonical(text): parse_requirement(text).marker for text in read.requires}
    plain = {text for text, marker in parsed.items() if marker is None or _may_hold(str(marker), "")}
    rest = {text: str(marker) for text, marker in sorted(parsed.items()) if text not in plain}
    more = {extra: tuple(text for text, marker in rest.items() if _may_hold(marker, extra)) for extra in extras}
    return tuple(sorted(plain)), {extra: more[extra] for extra in sorted(more) if more[extra] or extra in read.extras}


@cache
def _canonical(text: str) -> str:
    """The same text for the same requirement, however it was written. Raises ValueError."""
    found = parse_requirement(text)
    extras = ",".join(sorted(canonicalize_name(extra) for extra in found.extras))
    name = canonicalize_name(found.name) + (f"[{extras}]" if extras else "")
    required = f" @ {found.url} " if found.url else str(found.specifier)
    return name + required + (f"; {found.marker}" if found.marker else "")


@cache
def _may_hold(marker: str, extra: str) -> bool:
    places = itertools.product(_PYTHONS, _MACHINES)
    return any(holds(marker, f"3.{minor}.0", machine, extra) is not False for minor, machine in places)


def cuda_of(requires: Iterable[str]) -> str | None:
    """The CUDA version of a build that pins its runtime: "12.8" of nvidia-cuda-runtime-cu12==12.8.90, else None."""
    for text in requires:
        found = parse_requirement(text)
        pins = [each.version for each in found.specifier if each.operator == "=="]
        if _RUNTIME.fullmatch(canonicalize_name(found.name)) and pins:
            release = Version(pins[0].removesuffix(".*")).release
            return f"{release[0]}.{release[1]}" if len(release) > 1 else None
    return None


def _specifier(text: str) -> str:
    try:
        if len(text) <= LONGEST_REQUIREMENT:
            return str(SpecifierSet(text))
    except ValueError:
        pass
    raise ValueError(f'its Requires-Python is "{cut(text, LONGEST_REQUIREMENT)}"')


def _machine(tag: Tag) -> str:
    return next((machine for machine in _MACHINES if tag.platform.endswith(machine)), tag.platform)


def _tag(filename: str) -> str:
    """The tag of a wheel's name: "cp38-abi3-manylinux_2_28_x86_64"."""
    return "-".join(filename.removesuffix(".whl").split("-")[-3:])
