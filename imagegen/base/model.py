"""A base as it stands in a lock. Nothing here reads a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagegen import registry


@dataclass(frozen=True)
class Deb:
    name: str
    version: str
    architecture: str
    sha256: str  # lower-case hex
    size: int  # bytes
    archive: str  # "debian" or "debian-security"
    path: str  # below the archive's root: "pool/main/p/python3.11/python3.11_3.11.2-6_amd64.deb"

    @property
    def digest(self) -> str:
        """Of the package as a blob of the store."""
        return f"sha256:{self.sha256}"


@dataclass(frozen=True)
class LockedBase:
    """The base, resolved. `archives` maps an archive's suite to the Date of its signed Release file.

    Of kind registry, `content` is the platform's image as the registry had it under the name `image`, and `packages`
    are names that the matrix wants besides: only the image's own package manager could say which versions these are.
    """

    name: str
    kind: str
    suite: str | None
    archives: Mapping[str, str]  # "debian/bookworm" -> "2026-11-20T08:13:05Z"
    debs: tuple[Deb, ...]  # sorted by name
    image: str | None = None
    content: registry.Image | None = None
    packages: tuple[str, ...] = ()  # sorted
