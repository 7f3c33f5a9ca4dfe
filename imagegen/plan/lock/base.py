"""A base as it stands in a lock. Nothing here reads a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagegen.core import registry


@dataclass(frozen=True)
class Deb:
    name: str
    version: str
    architecture: str
    sha256: str  # lower-case hex
    size: int  # bytes
    archive: str  # its name: "debian", "debian-security", "ubuntu", or an address without scheme
    path: str  # below the archive's root: "pool/main/p/python3.11/python3.11_3.11.2-6_amd64.deb"

    @property
    def digest(self) -> str:
        """Of the package as a blob of the store."""
        return f"sha256:{self.sha256}"


@dataclass(frozen=True)
class LockedBase:
    """The base, resolved. `archives` maps an archive's suite to the Date of its signed Release file.

    Of kind registry, `content` is the platform's image as the registry had it under the name `image`.
    """

    name: str
    kind: str
    suite: str | None
    archives: Mapping[str, str]  # "debian/bookworm" -> "2026-11-20T08:13:05Z"
    debs: tuple[Deb, ...]  # sorted by name
    image: str | None = None
    content: registry.Image | None = None


@dataclass(frozen=True)
class LockedArchive:
    """One suite of an archive that packages were resolved from. A flat archive's suite ends in a slash."""

    archive: str  # as in Deb
    suite: str  # "jammy-updates"
    components: tuple[str, ...]
    date: str  # of its signed Release file
    address: str | None = None  # as the image's sources have it; None: of an archive that has a name


@dataclass(frozen=True)
class LockedPackages:
    """Packages that are added above a base, resolved: what was requested, and the debs that the base lacks for it."""

    requested: Mapping[str, str]  # package -> reason; by name
    archives: tuple[LockedArchive, ...]  # those that debs come from, sorted
    debs: tuple[Deb, ...]  # sorted by name
