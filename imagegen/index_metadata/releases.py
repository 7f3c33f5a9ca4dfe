"""Read a package's releases from an index, each with the metadata of one of its wheels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from imagegen.compat.metadata import PackageReleases, ReleaseMetadata, holds, selected_extras
from imagegen.core.errors import FetchError
from imagegen.core.net.package_index import IndexLink
from imagegen.core.net.wheel_metadata import Metadata
from imagegen.core.text import cut
from imagegen.core.types import LONGEST_REQUIREMENT, parse_requirement

# Images are for Linux on these machines. Wheels and requirements for other systems are left out.
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
        """The rank for reading metadata: x86_64 is best, then the last rebuild, then the newest ordinary CPython."""
        machines = {_machine(tag) for tag in self.tags}
        python = max(
            (int(tag.interpreter[3:] or 0) for tag in self.tags if re.fullmatch(r"cp3\d+", tag.interpreter)), default=0
        )
        threaded = any(tag.abi.endswith("t") for tag in self.tags)
        machine_rank = [machine in machines for machine in ("x86_64", "any", "aarch64")]
        return (machine_rank, self.build, not threaded, python, self.link.filename)


@dataclass
class _Files:
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
    pool: Executor | None = None,
) -> PackageReleases:
    """Return `requested` with the releases that the links show; `metadata` reads the metadata of a wheel of a version.

    `pinned` are pre-releases that other packages require; they are included. A `pool` reads several releases at a time.
    Raises FetchError for a page without a release, and if the metadata of one cannot be used.
    """
    versions = _versions(requested, _by_version(requested.name, links), pinned)
    if not versions:
        since = f" since {requested.since}" if requested.since else ""
        raise FetchError(f"the index has no release of {requested.name}{since} for Linux", code="fetch-no-release")
    newest_first = sorted(versions, reverse=True)
    releases = (pool.map if pool else map)(partial(_release, requested, versions, metadata), newest_first)
    ordered = {release.version: release for release in releases}
    return PackageReleases(requested.name, requested.index, today, requested.since, requested.extras, ordered)


def select(
    package: str, links: Iterable[IndexLink], within: SpecifierSet, at_most: int, *, spread: bool = False
) -> tuple[list[IndexLink], str | None]:
    """Return the links of the newest releases that the specifier admits; pre-releases only if there is nothing else.

    With `spread`, they are of all ages, and the last of their minor series. If the specifier is only `!=` a version,
    they are the last before it, and newer ones at growing distances; far older ones lack bounds that they need today.
    The second value is the oldest of them if more releases are admitted.
    """
    admitted = {
        version: files
        for version, files in _by_version(package, links).items()
        if within.contains(version, prereleases=True)
    }
    final = sorted([version for version in admitted if not version.is_prerelease] or admitted, reverse=True)
    chosen = final[:at_most]
    excluded = next((Version(part.version) for part in within if len(within) == 1 and part.operator == "!="), None)
    if spread and excluded and len(final) > at_most:
        newer = [version for version in final if version > excluded][::-1]
        older = [version for version in final if version < excluded]
        chosen = [*_geometric(newer, at_most // 2)][::-1] + older[: at_most // 2]
    elif spread and len(final) > at_most:
        last = list({version.release[:2]: version for version in reversed(final)}.values())[::-1]
        chosen = [last[number * len(last) // at_most] for number in range(at_most)] if len(last) > at_most else last
    oldest = str(chosen[-1]) if len(chosen) < len(final) else None
    return [link for version in chosen for link in admitted[version].links], oldest


def _geometric(versions: Sequence[Version], number: int) -> Iterator[Version]:
    """Yield the first and the last version, and others at growing distances between them, `number` at most."""
    positions = (round(len(versions) ** (step / (number - 1))) - 1 for step in range(number if versions else 0))
    yield from (versions[position] for position in dict.fromkeys(positions))


def _by_version(package: str, links: Iterable[IndexLink]) -> dict[Version, _Files]:
    by_version: dict[Version, _Files] = {}
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
        files = by_version.setdefault(version, _Files())
        files.links.append(link)
        if not tags:
            files.sdists.append(link)
        elif any(_PLATFORM.fullmatch(tag.platform) and not tag.interpreter.startswith("pp") for tag in tags):
            files.wheels.append(_Wheel(link, build, tags))
    return {version: files for version, files in by_version.items() if files.wheels or files.sdists}


def _versions(
    requested: PackageReleases, by_version: dict[Version, _Files], pinned: Collection[Version]
) -> dict[Version, _Files]:
    """Return the versions from `since` on; pre-releases only if there is nothing else, or if they are pinned."""
    recent = {
        version: files
        for version, files in by_version.items()
        if requested.since is None or version >= Version(requested.since)
    }
    if all(version.is_prerelease for version in recent):
        return recent
    return {version: files for version, files in recent.items() if not version.is_prerelease or version in pinned}


def _release(
    requested: PackageReleases,
    versions: Mapping[Version, _Files],
    metadata: Callable[[IndexLink, str], Metadata],
    release: Version,
) -> ReleaseMetadata:
    files, version = versions[release], str(release)
    days = sorted(str(link.uploaded) for link in files.links if link.uploaded)
    wheel = max(files.wheels, key=lambda wheel: wheel.rank, default=None)
    read = metadata(wheel.link, version) if wheel else None
    try:
        python = read_requires_python(read.python if read else files.sdists[0].python)
        plain, extras = _split(requested, read or Metadata((), ""))
    except (ValueError, RecursionError) as error:
        name = (wheel.link if wheel else files.sdists[0]).filename
        raise FetchError(
            f"the metadata of {name} cannot be used", code="fetch-metadata-invalid", why=str(error)
        ) from error
    return ReleaseMetadata(
        version=version,
        uploaded=days[0] if days else None,
        python=python,
        requires=plain if wheel else None,
        wheels=tuple(sorted({_tag(file.link.filename) for file in files.wheels})),
        extras=extras,
        cuda=cuda_of(plain),
        yanked=all(link.yanked for link in files.links),
    )


def _split(package: PackageReleases, read: Metadata) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the requirements of a plain install on Linux, and what each of the extras adds, if the release has it.

    Extras that one of them includes are among the result.
    """
    if len(read.requires) > _MOST:
        raise ValueError(f"it has {len(read.requires)} requirements")
    parsed = {_canonical(text): parse_requirement(text).marker for text in read.requires}
    plain = {text for text, marker in parsed.items() if marker is None or _may_hold(str(marker), "")}
    conditional = {text: str(marker) for text, marker in sorted(parsed.items()) if text not in plain}
    by_extra: dict[str, tuple[str, ...]] = {}
    pending = [*package.extras]
    while pending:
        if (extra := pending.pop()) not in by_extra:
            by_extra[extra] = tuple(text for text, marker in conditional.items() if _may_hold(marker, extra))
            pending += selected_extras(package.name, by_extra[extra])
    return tuple(sorted(plain)), {
        extra: by_extra[extra] for extra in sorted(by_extra) if by_extra[extra] or extra in read.extras
    }


@cache
def _canonical(text: str) -> str:
    """Return one text for all notations of a requirement. Raises ValueError."""
    requirement = parse_requirement(text)
    extras = ",".join(sorted(canonicalize_name(extra) for extra in requirement.extras))
    name = canonicalize_name(requirement.name) + (f"[{extras}]" if extras else "")
    required = f" @ {requirement.url} " if requirement.url else str(requirement.specifier)
    return name + required + (f"; {requirement.marker}" if requirement.marker else "")


@cache
def _may_hold(marker: str, extra: str) -> bool:
    environments = itertools.product(_PYTHONS, _MACHINES)
    return any(holds(marker, f"3.{minor}.0", machine, extra) is not False for minor, machine in environments)


def cuda_of(requires: Iterable[str]) -> str | None:
    """Return the CUDA version of a build that pins its runtime: "12.8" for nvidia-cuda-runtime-cu12==12.8.90."""
    for text in requires:
        requirement = parse_requirement(text)
        pins = [clause.version for clause in requirement.specifier if clause.operator == "=="]
        if _RUNTIME.fullmatch(canonicalize_name(requirement.name)) and pins:
            release = Version(pins[0].removesuffix(".*")).release
            return f"{release[0]}.{release[1]}" if len(release) > 1 else None
    return None


def read_requires_python(text: str) -> str:
    """Return a Requires-Python in canonical form. Raises ValueError if it is too long or malformed."""
    with suppress(ValueError):
        if len(text) <= LONGEST_REQUIREMENT:
            return str(SpecifierSet(text))
    raise ValueError(f'its Requires-Python is "{cut(text, LONGEST_REQUIREMENT)}"')


def _machine(tag: Tag) -> str:
    return next((machine for machine in _MACHINES if tag.platform.endswith(machine)), tag.platform)


def _tag(filename: str) -> str:
    """Return the tag of a wheel's file name: "cp38-abi3-manylinux_2_28_x86_64"."""
    return "-".join(filename.removesuffix(".whl").split("-")[-3:])
