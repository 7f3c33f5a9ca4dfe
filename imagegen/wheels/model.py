"""What finding a wheel works with. Nothing here reads a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Place(StrEnum):
    """Where a candidate comes from, in the order in which they are asked."""

    WHEELHOUSE = "wheelhouse"  # built or pulled here, under its complete key
    TEAM = "team wheelhouse"  # a registry's, under the same key
    LINKS = "find-links"  # directories and pages that the user names for pip
    INDEX = "index"  # the index itself has a wheel
    CATALOGUE = "catalogue"  # release assets that the data under wheels/ know
    SOURCE = "source build"


@dataclass(frozen=True)
class Candidate:
    """One wheel that may serve, or the source build. `fits` with the reason, either way, in one clause."""

    place: Place
    filename: str  # of a source build: the source's
    where: str  # address, file, registry reference, or recipe
    fits: bool
    reason: str
    sha256: str | None = None  # None: nobody has told it, and the file was not fetched
    size: int | None = None  # bytes


@dataclass(frozen=True)
class Offer:
    """A file that a place has, as far as the place tells it."""

    filename: str
    url: str
    sha256: str | None = None
    size: int | None = None  # bytes


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel of the wheelhouse. `record` tells how it was made (sources, flags, toolchain, peak memory, duration)."""

    key: str  # "sha256:...": of everything that decides it
    name: str
    version: str
    filename: str
    sha256: str
    size: int  # bytes
    record: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of the file as a blob of the store."""
        return f"sha256:{self.sha256}"
