"""Parse the metadata of a package into the statements of its releases; results of earlier runs stand for most."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.core.oci import PLATFORMS
from imagegen.core.types import parse_requirement
from imagegen.plan.matrix import metadata
from imagegen.plan.matrix.metadata import PackageReleases, ReleaseMetadata, holds
from imagegen.plan.rules.atoms import LATEST
from imagegen.plan.rules.statements import ReleaseStatements, Said, StatementTable
from imagegen.plan.rules.torch_pins import TORCH

# What torch asks of NVIDIA's libraries is true of PyPI's build alone; builds for other CUDA versions ask for others.
_OF_THE_BUILD = re.compile(r"(nvidia|cuda)-.+")
_GLIBC = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}  # PEP 600, "Legacy manylinux tags"
_NONE: frozenset[str] = frozenset()


def load_table(directories: Sequence[Path], package: str) -> StatementTable | None:
    """Return the statements of a package by its metadata; None where nothing is known of it.

    Raises MatrixError for a file that cannot be read.
    """
    found = metadata.load(directories, package)
    return table_of(found) if found else None


def table_of(package: PackageReleases) -> StatementTable:
    """Return the statements of all releases of a package."""
    places: dict[Said, int] = {}
    same_files: dict[tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]] = {}  # most releases have the same

    def placed(said: Iterable[Said]) -> tuple[int, ...]:
        return tuple(places.setdefault(each, len(places)) for each in said)

    def of_release(release: ReleaseMetadata) -> ReleaseStatements:
        files = {machine: placed(_of_files(release, machine)) for machine in PLATFORMS}
        return ReleaseStatements(
            placed(_required(package.name, release.requires or (), "")),
            {extra: placed(_required(package.name, texts, extra)) for extra, texts in release.extras.items()},
            {extra: _included(package.name, release, extra) for extra in release.extras},
            same_files.setdefault(tuple(files.values()), files),
        )

    releases = tuple(map(of_release, reversed(list(package.releases.values()))))
    markers = dict.fromkeys((marker, extra) for _, _, _, marker, extra, _ in places if marker is not None)
    held = {
        (marker, extra, machine): tuple(each for each in LATEST if holds(marker, each, machine, extra) is True)
        for marker, extra in markers
        for machine in PLATFORMS
    }
    return StatementTable(package, tuple(places), releases, held)


def _required(package: str, texts: Iterable[str], extra: str) -> Iterator[Said]:
    """Yield what requirements state, those of the package on itself aside."""
    for text in texts:
        name, specifier, needs, marker, extras = _requirement(text)
        if name != package and not (package == TORCH and _OF_THE_BUILD.fullmatch(name)):
            yield name, (specifier,), needs, marker, extra, extras


def _of_files(release: ReleaseMetadata, machine: str) -> Iterator[Said]:
    """Yield what the Python of a release and its wheels state."""
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
    """Return the extra and those that it includes, as sglang's srt requires `sglang[runtime-common]`."""
    found: set[str] = set()
    pending = [extra]
    while pending:
        extra = pending.pop()
        if extra not in found:
            found.add(extra)
            parsed = (parse_requirement(text) for text in release.extras.get(extra, ()))
            pending += (name for each in parsed if canonicalize_name(each.name) == package for name in each.extras)
    return frozenset(found)


@cache
def _requirement(text: str) -> tuple[str, str, str, str | None, frozenset[str]]:
    """Return name, specifier, both in words, marker and extras of a requirement."""
    parsed = parse_requirement(text)
    name, specifier = canonicalize_name(parsed.name), str(parsed.specifier)
    extras = frozenset(map(canonicalize_name, parsed.extras))
    marker = str(parsed.marker) if parsed.marker else None  # as text: a marker is written out for each comparison
    return name, specifier, f"requires {name}{specifier}", marker, extras


@cache
def _platforms(compressed: Sequence[str]) -> tuple[str, ...]:
    """Return the platforms that some wheel fits; none where there is no wheel, or one that fits all."""
    tags = {tag.platform for each in compressed for tag in parse_tag(each)}
    found = {name for machine, name in PLATFORMS.items() if any(each.endswith(f"_{machine}") for each in tags)}
    return () if "any" in tags else tuple(sorted(found))


@cache
def _wheels(compressed: Sequence[str], machine: str) -> tuple[tuple[str, ...], str | None]:
    """(specifiers of the Pythons that some wheel fits, none for all; the oldest glibc that one fits, None for any)."""
    tags = [tag for each in compressed for tag in parse_tag(each) if _for(tag, machine)]
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
    return f"{match[1]}.{match[2]}" if match else _GLIBC.get(kind)
