"""Parse the metadata of a package into the statements of its releases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.compat import metadata
from imagegen.compat.atoms import LATEST
from imagegen.compat.metadata import PackageReleases, ReleaseMetadata, holds, selected_extras
from imagegen.compat.package_data import entries_of
from imagegen.compat.statements import ReleaseStatements, StatementRow, StatementTable
from imagegen.compat.torch_pins import TORCH
from imagegen.core.types import parse_requirement
from imagegen.core.wheel_target import LEGACY_MANYLINUX
from imagegen.oci.documents import PLATFORMS

# torch's requirements of NVIDIA's libraries hold only for PyPI's build; builds for other CUDA versions require others.
_OF_THE_BUILD = re.compile(r"(nvidia|cuda)-.+")
_NONE: frozenset[str] = frozenset()


def load_table(directories: Sequence[Path], package: str) -> StatementTable | None:
    """Return the statements of a package by its metadata; None if it has none.

    Raises MatrixError for a file that cannot be read.
    """
    package_releases = metadata.load(directories, package)
    return table_of(package_releases) if package_releases else None


def table_of(package: PackageReleases) -> StatementTable:
    """Return the statements of all releases of a package."""
    positions: dict[StatementRow, int] = {}
    same_files: dict[tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]] = {}  # most releases have the same

    def positions_of(stated: Iterable[StatementRow]) -> tuple[int, ...]:
        return tuple(positions.setdefault(statement, len(positions)) for statement in stated)

    def of_release(release: ReleaseMetadata) -> ReleaseStatements:
        files = {machine: positions_of(_of_files(release, machine)) for machine in PLATFORMS}
        return ReleaseStatements(
            positions_of(_required(package.name, release.requires or (), "")),
            {extra: positions_of(_required(package.name, texts, extra)) for extra, texts in release.extras.items()},
            {extra: _included(package.name, release, extra) for extra in release.extras},
            same_files.setdefault(tuple(files.values()), files),
        )

    releases = tuple(map(of_release, reversed(list(package.releases.values()))))
    markers = dict.fromkeys((marker, extra) for _, _, _, marker, extra, _ in positions if marker is not None)
    holding = {
        (marker, extra, machine): tuple(python for python in LATEST if holds(marker, python, machine, extra) is True)
        for marker, extra in markers
        for machine in PLATFORMS
    }
    extras = (extra for entry in entries_of("required-extras", package.name) for extra in entry["extras"])
    return StatementTable(package, tuple(positions), releases, holding, frozenset(extras))


def _required(package: str, texts: Iterable[str], extra: str) -> Iterator[StatementRow]:
    """Yield the statements of requirements, except requirements of the package on itself."""
    for text in texts:
        name, specifier, needs, marker, extras = _requirement(text)
        if name != package and not (package == TORCH and _OF_THE_BUILD.fullmatch(name)):
            yield name, (specifier,), needs, marker, extra, extras


def _of_files(release: ReleaseMetadata, machine: str) -> Iterator[StatementRow]:
    """Yield the statements of a release about Python and of its wheels."""
    if release.python:
        yield "python", (release.python,), f"requires Python {release.python}", None, "", _NONE
    platforms = _platforms(release.wheels)
    if platforms and PLATFORMS[machine] not in platforms:
        yield "platform", platforms, f"has no wheel for {PLATFORMS[machine]}", None, "", _NONE
    pythons, glibc = _wheels(release.wheels, machine)
    if pythons:
        yield "python", pythons, f"has wheels for Python {_listed(pythons)} alone", None, "", _NONE
    if glibc:
        yield "glibc", (f">={glibc}",), f"has no wheel for a glibc older than {glibc}", None, "", _NONE


def _included(package: str, release: ReleaseMetadata, extra: str) -> frozenset[str]:
    """Return the extra and the extras that it includes, as sglang's srt requires `sglang[runtime-common]`."""
    included: set[str] = set()
    pending = [extra]
    while pending:
        if (extra := pending.pop()) not in included:
            included.add(extra)
            pending += selected_extras(package, release.extras.get(extra, ()))
    return frozenset(included)


@cache
def _requirement(text: str) -> tuple[str, str, str, str | None, frozenset[str]]:
    """Return name, specifier, words, marker and extras of a requirement."""
    parsed = parse_requirement(text)
    name, specifier = canonicalize_name(parsed.name), str(parsed.specifier)
    extras = frozenset(map(canonicalize_name, parsed.extras))
    marker = str(parsed.marker) if parsed.marker else None  # as text: a marker is written out for each comparison
    return name, specifier, f"requires {name}{specifier}", marker, extras


@cache
def _platforms(compressed: Sequence[str]) -> tuple[str, ...]:
    """Return the platforms that some wheel fits; none if there is no wheel, or one that fits all."""
    tags = {tag.platform for compressed_tag in compressed for tag in parse_tag(compressed_tag)}
    platforms = {
        name
        for machine, name in PLATFORMS.items()
        if any(tag_platform.endswith(f"_{machine}") for tag_platform in tags)
    }
    return () if "any" in tags else tuple(sorted(platforms))


@cache
def _wheels(compressed: Sequence[str], machine: str) -> tuple[tuple[str, ...], str | None]:
    """(specifiers of the Pythons that some wheel fits, none for all; the oldest glibc that one fits, None for any)."""
    tags = [tag for compressed_tag in compressed for tag in parse_tag(compressed_tag) if _for(tag, machine)]
    pythons = {_python(tag) for tag in tags}
    if not tags:
        return (), None
    floors = [_glibc(tag.platform, machine) for tag in tags]
    oldest = None if None in floors else min((Version(floor) for floor in floors if floor), default=None)
    return () if "" in pythons else tuple(sorted(pythons)), str(oldest) if oldest else None


def _listed(pythons: Iterable[str]) -> str:
    """Return the Pythons in words: ">=3.9" is "3.9 and newer", "==3.11.*" is "3.11"."""
    words = [python[2:].removesuffix(".*") + (" and newer" if python.startswith(">=") else "") for python in pythons]
    return ", ".join(sorted(words, key=lambda word: Version(word.partition(" ")[0])))


def _for(tag: Tag, machine: str) -> bool:
    threaded = tag.abi.endswith("t") and tag.abi.startswith("cp")
    return (tag.platform == "any" or tag.platform.endswith(f"_{machine}")) and not threaded


def _python(tag: Tag) -> str:
    match = re.fullmatch(r"(cp|py)3(\d+)", tag.interpreter)
    if not match:
        return ""
    exact = match[1] == "cp" and tag.abi != "abi3"
    return f"==3.{match[2]}.*" if exact else f">=3.{match[2]}"


def _glibc(platform: str, machine: str) -> str | None:
    kind = platform.removesuffix(f"_{machine}")
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)", kind)
    if match:
        return f"{match[1]}.{match[2]}"
    return f"2.{LEGACY_MANYLINUX[kind]}" if kind in LEGACY_MANYLINUX else None
