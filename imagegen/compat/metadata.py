"""Package metadata from an index, release by release, for use without network; metadata_file.py has the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path

from imagegen.compat import harvested
from imagegen.core import types as t
from imagegen.core.deferred import dataclass


@dataclass(frozen=True)
class ReleaseMetadata:
    """One version as the index has it, for Linux on x86_64 and aarch64.

    `requires` are PEP 508 strings, sorted, without extras; None if only an sdist exists, because its
    requirements are unknown until its code runs. `wheels` are the tags of file names, in their compressed form
    ("cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64"); with none, the release is built from source.
    """

    version: str  # canonical: "0.8.5.post1"
    uploaded: str | None  # the day of its first file, "2026-07-03"; None if the index does not have it
    python: str  # PEP 440 specifier, "" for any
    requires: tuple[str, ...] | None
    wheels: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # requested extra -> the requirements that it adds
    cuda: str | None = None  # the CUDA runtime that it pins, "12.8"; None if it pins none
    yanked: bool = False


@dataclass(frozen=True)
class PackageReleases:
    """The harvested releases of a package. `since` and `extras` are the input of a harvest, all else its result."""

    name: str  # normalised
    index: str  # alias: "pypi"
    read: str | None  # the day on which the index last said something new; None before the first harvest
    since: str | None  # the oldest version that is kept; None for all
    extras: tuple[str, ...]  # whose requirements are kept, sorted
    releases: Mapping[str, ReleaseMetadata]  # by version, the newest first


@cache
def holds(marker: str, python: str, machine: str, extra: str) -> bool | None:
    """Return whether a marker holds for a full version of CPython on Linux; None where that is unknown."""
    from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName

    environment = {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
        "extra": extra,
    }
    try:
        return Marker(marker).evaluate(environment)
    except (UndefinedComparison, UndefinedEnvironmentName):
        return None


def selected_extras(package: str, requirements: Iterable[str]) -> Iterator[str]:
    """Yield the extras that requirements of a package select of the package itself: `sglang[runtime-common]`."""
    from packaging.utils import canonicalize_name

    for requirement in map(t.parse_requirement, requirements):
        if canonicalize_name(requirement.name) == package:
            yield from map(canonicalize_name, requirement.extras)


def _parse(raw: bytes, path: Path, package: str) -> PackageReleases:
    from imagegen.compat.metadata_file import parse  # late: results of earlier runs stand for most files

    return parse(raw, path, package)


_FILES = harvested.Folder("metadata", _parse)
load, names, path_of = _FILES.load, _FILES.names, _FILES.path_of
