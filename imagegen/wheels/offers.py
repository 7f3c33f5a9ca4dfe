"""The sources of prebuilt wheels, the files that they offer, and candidates among these."""

from __future__ import annotations

from enum import StrEnum

from imagegen.core.deferred import dataclass


class WheelSource(StrEnum):
    """The source of a candidate, in the finder's order."""

    WHEELHOUSE = "wheelhouse"  # built or pulled here, under its complete key
    TEAM = "team wheelhouse"  # a registry's, under the same key
    LINKS = "find-links"  # directories and pages that the user names for pip
    INDEX = "index"  # the index itself has a wheel
    CATALOGUE = "catalogue"  # release assets that the data under wheels/ know
    SOURCE = "source build"


@dataclass(frozen=True)
class Candidate:
    """One wheel that may serve, or the source build. `fits` with the reason, either way, in one clause."""

    place: WheelSource
    filename: str  # the source's, for a source build
    where: str  # address, file, registry reference, or recipe
    fits: bool
    reason: str
    sha256: str | None = None  # None: not published, and the file was not fetched
    size: int | None = None  # bytes


@dataclass(frozen=True)
class Offer:
    """A file that a place offers, with the attributes that the place states."""

    filename: str
    url: str
    sha256: str | None = None
    size: int | None = None  # bytes
