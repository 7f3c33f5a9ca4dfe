"""The part of a lock file that says which Debian packages are added above the base."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from imagegen.plan.distributions import archive_at, archives
from imagegen.plan.lock import forms as f
from imagegen.plan.lock.base import Deb, LockedArchive, LockedPackages
from imagegen.plan.lock.forms import CONFIG, fields


class DebTable(BaseModel):
    model_config = CONFIG

    name: f.DebName
    version: f.DebVersion
    architecture: f.Word
    size: f.Size
    sha256: f.Sha256
    archive: f.ArchiveName
    path: f.RelativePath

    def to_model(self) -> Deb:
        return Deb(**self.model_dump())


class _Archive(BaseModel):
    model_config = CONFIG

    archive: f.ArchiveName
    suite: f.Suite
    components: list[f.AxisValue]
    date: f.Time
    address: f.ArchiveUrl | None = None


class Packages(BaseModel):
    """The table `packages`."""

    model_config = CONFIG

    requested: dict[f.DebName, f.Text]
    archives: list[_Archive] = []
    debs: list[DebTable] = []

    @model_validator(mode="after")
    def _known_archives(self) -> Packages:
        for each in self.archives:
            named = each.archive in archives()
            if named == bool(each.address) or (each.address and each.archive != archive_at(each.address)):
                raise ValueError(f"{each.address} is not the address of {each.archive}, or it has a name of its own")
        names = {each.archive for each in self.archives}
        if unknown := {deb.archive for deb in self.debs} ^ names:
            raise ValueError(f"archives and debs name different archives: {', '.join(sorted(unknown))}")
        return self

    def to_model(self) -> LockedPackages:
        archives = (
            LockedArchive(**each.model_dump() | {"components": tuple(each.components)}) for each in self.archives
        )
        return LockedPackages(dict(self.requested), tuple(archives), tuple(deb.to_model() for deb in self.debs))


def packages_table(added: LockedPackages) -> dict[str, Any]:
    """Return the table as the file has it."""
    return {
        "requested": dict(sorted(added.requested.items())),
        "archives": [_archive_table(each) for each in added.archives],
        "debs": [fields(deb, DebTable) for deb in added.debs],
    }


def _archive_table(archive: LockedArchive) -> dict[str, Any]:
    table = fields(archive, _Archive) | {"components": list(archive.components)}
    return {name: value for name, value in table.items() if value is not None}
