"""The part of a lock file that says what is installed: wheels, what they are made of, and builds from source."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from packaging.utils import (
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pydantic import BaseModel, Field, model_validator

from imagegen.plan.lock import forms as f
from imagegen.plan.lock.forms import CONFIG, fields, names_file
from imagegen.plan.lock.model import (
    BUILT,
    GIT,
    LINKS,
    LOCAL,
    URL,
    File,
    LockedBuild,
    LockedGit,
    LockedPatch,
    LockedSdist,
    LockedSubmodule,
    LockedWheel,
    archive_name,
)

_SPEC = "spec.json"  # which lies beside the files of a build


class _Table(BaseModel):
    model_config = CONFIG


class _Distribution(_Table):
    """A file of an index, or with an address of its own, with what it is a release of."""

    name: f.Package
    version: f.PackageVersion
    file: f.FileName
    size: f.Size | None = None
    sha256: f.Sha256
    index: f.Word
    path: f.RelativePath | None = None
    url: f.FileUrl | None = None

    @model_validator(mode="after")
    def _same_release(self) -> _Distribution:
        if self.index in (GIT, LOCAL) and self.file == archive_name(self.name, self.version):
            return self  # what is packed of a tree has a name of its own
        name, version = _release(self.file)
        if name != self.name or version != Version(self.version):
            raise ValueError(f"{self.file} is not a file of {self.name} {self.version}")
        return self

    @model_validator(mode="after")
    def _one_address(self) -> _Distribution:
        if self.size is None and self.index != URL:
            raise ValueError(f"{self.file} has no size, which only a file with a url may lack")
        if (self.url is None) != (self.index != URL) or (self.url and self.path):
            raise ValueError(f"{self.file} has a url, then its index is {URL!r} and it has no path; or it has none")
        address = self.url or self.path
        if address and not names_file(address, self.file):
            raise ValueError(f"{address} is not the address of {self.file}")
        return self

    def to_file(self) -> File:
        return File(self.file, self.sha256, self.size, self.index, self.path, self.url)


def _release(filename: str) -> tuple[str, Version]:
    return parse_wheel_filename(filename)[:2] if filename.endswith(".whl") else parse_sdist_filename(filename)


class Wheel(_Distribution):
    because: f.Text | None = None
    via: list[f.Package] = []
    sdist: _Sdist | None = None
    git: _Git | None = None
    misrecorded: f.Text | None = None
    choice: f.Text | None = None

    @model_validator(mode="after")
    def _is_a_wheel(self) -> Wheel:
        if not self.file.endswith(".whl"):
            raise ValueError(f"{self.file} is no wheel")
        if (self.sdist and self.git) or (self.git is None) != (self.index != GIT):
            raise ValueError(f"{self.file} is made of an sdist, of a commit (then its index is {GIT}), or of neither")
        if self.index in (BUILT, LOCAL):
            raise ValueError(f"{self.file} cannot be of {self.index}: what is compiled stands in a lock as a build")
        if self.choice is None and self.index in (URL, LINKS):
            raise ValueError(f"{self.file} is of no index, and no choice says why")
        return self

    def to_model(self) -> LockedWheel:
        return LockedWheel(
            name=self.name,
            version=self.version,
            file=self.to_file(),
            via=tuple(self.via),
            because=self.because,
            sdist=self._source(),
            misrecorded=self.misrecorded,
            choice=self.choice,
        )

    def _source(self) -> LockedSdist | None:
        if self.sdist:
            return self.sdist.to_model()
        return self.git.to_model(self.name, self.version) if self.git else None


class _Sdist(_Distribution):
    build: list[Wheel] = []

    @model_validator(mode="after")
    def _is_an_sdist(self) -> _Sdist:
        if not self.file.endswith(".tar.gz"):
            raise ValueError(f"{self.file} is no source distribution (PEP 625)")
        return self

    def to_model(self) -> LockedSdist:
        return LockedSdist(self.to_file(), tuple(wheel.to_model() for wheel in self.build))


class _Commit(_Table):
    ref: f.GitName
    url: f.GitUrl
    commit: f.GitObject
    tree: f.GitObject


class _Git(_Commit):
    subdirectory: f.RelativePath | None = None
    size: f.Size
    sha256: f.Sha256
    build: list[Wheel] = []

    def to_model(self, name: str, version: str) -> LockedSdist:
        return LockedSdist(
            File(archive_name(name, version), self.sha256, self.size, GIT),
            tuple(wheel.to_model() for wheel in self.build),
            LockedGit(self.ref, self.url, self.commit, self.tree, self.subdirectory or ""),
        )


class _Source(_Commit):
    ref: f.GitRef


class _Submodule(_Table):
    path: f.RelativePath
    url: f.GitUrl
    commit: f.GitObject
    tree: f.GitObject


class _Patch(_Table):
    filename: f.RelativePath
    sha256: f.Sha256


class Build(_Distribution):
    """A component that is compiled; file, size, sha256 and index are its source's."""

    because: f.Text | None = None
    via: list[f.Package] = []
    choice: f.Text
    key: f.Digest
    architectures: list[f.Capability] = []
    modules: list[f.Module] = Field(default=[])
    requires: list[f.Requirement] = []
    against: list[f.Package] = []
    env: dict[f.BuildVariable, f.Text] = {}
    git: _Source | None = None
    submodules: list[_Submodule] = []
    patches: list[_Patch] = []
    build_requires: list[Wheel] = []

    @model_validator(mode="after")
    def _is_a_source(self) -> Build:
        if self.index in (BUILT, LINKS, URL) or self.file.endswith(".whl"):
            raise ValueError(f"{self.file} of {self.index} is no source that a build can begin with")
        if (self.git is None) != (self.index != GIT) or (self.submodules and not self.git):
            raise ValueError(f"{self.file} is of a commit, then its index is {GIT}; or it has none, and no submodules")
        for what, names in (
            ("against", self.against),
            ("submodules", [each.path for each in self.submodules]),
            ("build-requires", [each.name for each in self.build_requires]),
        ):
            if names != sorted(set(names)):
                raise ValueError(f"its {what} are not sorted, each once")
        beside = [_SPEC, self.file, *(each.file for each in self.build_requires)]
        for name in [each.filename for each in self.patches]:
            if name in beside or "/" in name:
                raise ValueError(f"its patch {name} has no file name of its own in the folder of the build")
            beside.append(name)
        return self

    def to_model(self) -> LockedBuild:
        return LockedBuild(
            name=self.name,
            version=self.version,
            because=self.because,
            via=tuple(self.via),
            choice=self.choice,
            source=self.to_file(),
            git=LockedGit(**self.git.model_dump()) if self.git else None,
            submodules=tuple(LockedSubmodule(**each.model_dump()) for each in self.submodules),
            patches=tuple(LockedPatch(**each.model_dump()) for each in self.patches),
            requires=tuple(self.requires),
            build_requires=tuple(wheel.to_model() for wheel in self.build_requires),
            against=tuple(self.against),
            env=dict(self.env),
            architectures=tuple(self.architectures),
            modules=tuple(self.modules),
            key=self.key,
        )


def wheel_table(wheel: LockedWheel) -> dict[str, Any]:
    table: dict[str, Any] = {"name": wheel.name, "version": wheel.version}
    if wheel.because is not None:
        table["because"] = wheel.because
    if wheel.via:
        table["via"] = list(wheel.via)
    if wheel.choice is not None:
        table["choice"] = wheel.choice
    table |= _file_table(wheel.file)
    if wheel.misrecorded is not None:
        table["misrecorded"] = wheel.misrecorded
    if wheel.sdist:
        build = [wheel_table(build) for build in wheel.sdist.build_requires]
        file = wheel.sdist.file
        if git := wheel.sdist.git:
            table["git"] = {**_git_table(git), "size": file.size, "sha256": file.sha256, "build": build}
        else:
            table["sdist"] = {"name": wheel.name, "version": wheel.version, **_file_table(file), "build": build}
    return table


def build_table(build: LockedBuild) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": build.name,
        "version": build.version,
        "because": build.because,
        "via": list(build.via),
        "choice": build.choice,
        "key": build.key,
        **_file_table(build.source),
        "architectures": list(build.architectures),
        "modules": list(build.modules),
        "requires": list(build.requires),
        "against": list(build.against),
        "env": dict(sorted(build.env.items())),
        "git": _git_table(build.git) if build.git else None,
        "submodules": [fields(each, _Submodule) for each in build.submodules],
        "patches": [fields(each, _Patch) for each in build.patches],
        "build-requires": [wheel_table(wheel) for wheel in build.build_requires],
    }
    return {name: value for name, value in table.items() if value not in (None, [], {})}


def _git_table(git: LockedGit) -> dict[str, str]:
    return {name: value for name, value in asdict(git).items() if value}


def _file_table(file: File) -> dict[str, Any]:
    table = {"file": file.filename, "size": file.size, "sha256": file.sha256, "index": file.index}
    table |= {"path": file.path, "url": file.url}
    return {name: value for name, value in table.items() if value is not None}
