"""The tables of a base and its packages in a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.validation import Check
from imagegen.lock.distributions import archive_at
from imagegen.lock.distributions import archives as named_archives
from imagegen.lock.tables import HashedFile, LockTable, inline
from imagegen.oci.documents import RemoteImage

_nest_config = inline(config=("env", "entrypoint", "command", "user", "directory"), required=True)


@dataclass(frozen=True)
class LockedDeb(HashedFile, LockTable):
    name: t.DebianPackage
    version: t.DebianVersion
    architecture: t.Word
    size: t.Size
    sha256: t.Sha256
    archive: t.ArchiveName  # "debian", "debian-security", "ubuntu", or an address without scheme
    path: t.UrlPath  # below the archive's root: "pool/main/p/python3.11/python3.11_3.11.2-6_amd64.deb"


@dataclass(frozen=True)
class LockedBase(LockTable):
    """The base, resolved. `archives` maps an archive's suite to the Date of its signed Release file.

    In a base of kind registry, `content` is the platform's image that the registry had under the name `image`.
    """

    name: t.Word
    kind: Literal["debian", "registry"]
    suite: t.Word | None = None
    archives: Mapping[t.ArchivePart, t.Time] = field(default_factory=dict)  # by "debian/bookworm"
    debs: tuple[LockedDeb, ...] = ()  # sorted by name
    image: t.ImageReference | None = None
    content: Annotated[RemoteImage, Check(_nest_config, before=True)] | None = None

    def check(self) -> None:
        registered = (self.image is not None, self.content is not None)
        if registered != (self.kind == "registry",) * 2 or (self.suite is None) != (self.kind == "registry"):
            raise ValueError("a base of kind debian has a suite, one of kind registry an image and its content")
        if self.kind == "registry" and (self.debs or self.archives):
            raise ValueError("a base of kind registry has no locked Debian packages")
        archive_names = {suite.partition("/")[0] for suite in self.archives}
        for name, archives in (
            ("debs", {deb.archive for deb in self.debs} - archive_names),
            ("archives", archive_names - named_archives().keys()),
        ):
            if archives:
                raise ValueError(f"{name} name an unknown archive: {', '.join(sorted(archives))}")


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

    def check(self) -> None:
        for archive in self.archives:
            is_named = archive.archive in named_archives()
            if is_named == bool(archive.address) or (
                archive.address and archive.archive != archive_at(archive.address)
            ):
                raise ValueError(
                    f"{archive.address} is not the address of {archive.archive}, or it has a name of its own"
                )
        if unknown := {deb.archive for deb in self.debs} ^ {archive.archive for archive in self.archives}:
            raise ValueError(f"archives and debs name different archives: {', '.join(sorted(unknown))}")


# The platform of most machines that build images. Byte-code is the same for all processors. So an interpreter of this
# platform compiles it for images of other platforms too, without emulation.
BUILD_PLATFORM = "linux/amd64"
