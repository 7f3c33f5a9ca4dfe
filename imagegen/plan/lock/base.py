"""A base as it stands in a lock. Nothing here reads a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from imagegen.core import types as t
from imagegen.core.oci.types import RemoteImage
from imagegen.plan.distributions import archive_at
from imagegen.plan.distributions import archives as named_archives
from imagegen.plan.lock.tables import LockTable, inline

_Image = Annotated[
    RemoteImage,
    BeforeValidator(inline(config=("env", "entrypoint", "command", "user", "directory"), required=True)),
]


@dataclass(frozen=True)
class LockedDeb(LockTable):
    name: t.DebianPackage
    version: t.DebianVersion
    architecture: t.Word
    size: t.Size
    sha256: t.Sha256
    archive: t.ArchiveName  # "debian", "debian-security", "ubuntu", or an address without scheme
    path: t.UrlPath  # below the archive's root: "pool/main/p/python3.11/python3.11_3.11.2-6_amd64.deb"

    @property
    def digest(self) -> str:
        """The digest of the package as a blob of the store."""
        return f"sha256:{self.sha256}"


@dataclass(frozen=True)
class LockedBase(LockTable):
    """The base, resolved. `archives` maps an archive's suite to the Date of its signed Release file.

    Of kind registry, `content` is the platform's image as the registry had it under the name `image`.
    """

    name: t.Word
    kind: Literal["debian", "registry"]
    suite: t.Word | None = None
    archives: Mapping[t.ArchivePart, t.Time] = field(default_factory=dict)  # by "debian/bookworm"
    debs: tuple[LockedDeb, ...] = ()  # sorted by name
    image: t.ImageReference | None = None
    content: _Image | None = None

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> LockedBase:
        registered = (self.image is not None, self.content is not None)
        if registered != (self.kind == "registry",) * 2 or (self.suite is None) != (self.kind == "registry"):
            raise ValueError("a base of kind debian has a suite, one of kind registry an image and its content")
        if self.kind == "registry" and (self.debs or self.archives):
            raise ValueError("a base of kind registry has no locked Debian packages")
        known = {suite.partition("/")[0] for suite in self.archives}
        for name, archives in (
            ("debs", {deb.archive for deb in self.debs} - known),
            ("archives", known - named_archives().keys()),
        ):
            if archives:
                raise ValueError(f"{name} name an unknown archive: {', '.join(sorted(archives))}")
        return self


@dataclass(frozen=True)
class LockedArchive(LockTable):
    """One suite of an archive that packages were resolved from. A flat archive's suite ends in a slash."""

    archive: t.ArchiveName  # as in LockedDeb
    suite: t.Suite  # "jammy-updates"
    components: tuple[t.ArchivePart, ...]
    date: t.Time  # of its signed Release file
    address: t.ArchiveUrl | None = None  # as the image's sources have it; None: of an archive that has a name


@dataclass(frozen=True)
class LockedPackages(LockTable):
    """Packages that are added above a base, resolved: those requested, and the debs that the base lacks for them."""

    requested: Mapping[t.DebianPackage, t.Line]  # package -> reason; by name
    archives: tuple[LockedArchive, ...]  # those that debs come from, sorted
    debs: tuple[LockedDeb, ...]  # sorted by name

    @model_validator(mode="after")
    def _names_its_archives(self) -> LockedPackages:
        for each in self.archives:
            named = each.archive in named_archives()
            if named == bool(each.address) or (each.address and each.archive != archive_at(each.address)):
                raise ValueError(f"{each.address} is not the address of {each.archive}, or it has a name of its own")
        if unknown := {deb.archive for deb in self.debs} ^ {each.archive for each in self.archives}:
            raise ValueError(f"archives and debs name different archives: {', '.join(sorted(unknown))}")
        return self
