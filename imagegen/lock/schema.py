"""What a lock file may hold, strictly: the shape of its TOML, checked with pydantic and turned into `model`'s classes.

Locks are reviewed, but they come from outside all the same: their names, versions, reasons and paths end up in
Dockerfiles and in paths of the store, so that each kind of text has one narrow form here.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pydantic import BaseModel, model_validator

from imagegen.lock import forms as f
from imagegen.lock.base_schema import Base, base_table
from imagegen.lock.forms import CONFIG, fields
from imagegen.lock.model import (
    GIT,
    LOCK_VERSION,
    File,
    Lock,
    LockedEnv,
    LockedGit,
    LockedGpus,
    LockedSdist,
    LockedWheel,
    Record,
    RecordedLayer,
    Winner,
    archive_name,
)


class _Table(BaseModel):
    model_config = CONFIG


class _Distribution(_Table):
    """A file of an index with what it is a release of."""

    name: f.Package
    version: f.PackageVersion
    file: f.FileName
    size: f.Size
    sha256: f.Sha256
    index: f.Word
    path: f.RelativePath | None = None

    @model_validator(mode="after")
    def _same_release(self) -> _Distribution:
        name, version = _release(self.file)
        if name != self.name or version != Version(self.version):
            raise ValueError(f"{self.file} is not a file of {self.name} {self.version}")
        return self

    def to_file(self) -> File:
        return File(filename=self.file, sha256=self.sha256, size=self.size, index=self.index, path=self.path)


def _release(filename: str) -> tuple[str, Version]:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[:2]
        return parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise ValueError(str(error)) from None


class _Wheel(_Distribution):
    because: f.Text | None = None
    via: list[f.Package] = []
    sdist: _Sdist | None = None
    git: _Git | None = None
    misrecorded: f.Text | None = None

    @model_validator(mode="after")
    def _is_a_wheel(self) -> _Wheel:
        if not self.file.endswith(".whl"):
            raise ValueError(f"{self.file} is no wheel")
        if (self.sdist and self.git) or (self.git is None) != (self.index != GIT):
            raise ValueError(f"{self.file} is made of an sdist, of a commit (then its index is {GIT}), or of neither")
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
        )

    def _source(self) -> LockedSdist | None:
        if self.sdist:
            return self.sdist.to_model()
        return self.git.to_model(self.name, self.version) if self.git else None


class _Sdist(_Distribution):
    build: list[_Wheel] = []

    @model_validator(mode="after")
    def _is_an_sdist(self) -> _Sdist:
        if not self.file.endswith(".tar.gz"):
            raise ValueError(f"{self.file} is no source distribution (PEP 625)")
        return self

    def to_model(self) -> LockedSdist:
        return LockedSdist(self.to_file(), tuple(wheel.to_model() for wheel in self.build))


class _Git(_Table):
    ref: f.GitName
    url: f.GitUrl
    commit: f.GitObject
    tree: f.GitObject
    size: f.Size
    sha256: f.Sha256
    build: list[_Wheel] = []

    def to_model(self, name: str, version: str) -> LockedSdist:
        return LockedSdist(
            File(archive_name(name, version), self.sha256, self.size, GIT),
            tuple(wheel.to_model() for wheel in self.build),
            LockedGit(self.ref, self.url, self.commit, self.tree),
        )


class _Env(_Table):
    name: f.EnvName
    value: f.Text
    because: f.Text


class _Gpu(_Table):
    capabilities: list[f.Capability]
    driver: f.DriverVersion | None = None


class _Winner(_Table):
    rule: f.Word
    distribution: f.Package
    over: list[f.Package]
    paths: f.PathGlob
    because: f.Text


class _Layer(_Table):
    name: f.Word
    size: f.Size
    digest: f.Digest
    diff_id: f.Digest
    key: f.Digest


class _Record(_Table):
    layer_format: int
    codec: f.Text
    digest: f.Digest
    layers: list[_Layer]


class LockFile(_Table):
    """The whole file; `to_model` gives what the rest of imagegen works with."""

    version: int
    cell: f.Word
    image: f.Word
    uv: _Wheel
    as_of: f.Time
    axes: dict[f.Word, f.AxisValue]
    inputs: dict[f.Text, f.Sha256]
    base: Base
    gpu: _Gpu | None = None
    env: list[_Env] = []
    wheel: list[_Wheel] = []
    winner: list[_Winner] = []
    record: _Record | None = None

    @model_validator(mode="after")
    def _consistent(self) -> LockFile:
        for needed in ("platform", "python"):
            if needed not in self.axes:
                raise ValueError(f"axes lack {needed!r}")
        for kind, names in (
            ("wheels", [wheel.name for wheel in self.wheel]),
            ("env", [env.name for env in self.env]),
            ("winners", [winner.rule for winner in self.winner]),
            ("debs", [deb.name for deb in self.base.debs]),
        ):
            if names != sorted(set(names)):
                out = next((b for a, b in itertools.pairwise(names) if b <= a), "")
                raise ValueError(f"{kind} are not sorted by name, each once: see {out!r}")
        known = {wheel.name for wheel in self.wheel}
        for winner in self.winner:
            if unknown := {winner.distribution, *winner.over} - known:
                raise ValueError(f"winner {winner.rule} speaks of {min(unknown)}, which the lock has not")
        return self

    def to_model(self) -> Lock:
        return Lock(
            cell=self.cell,
            image=self.image,
            axes=dict(self.axes),
            inputs=dict(self.inputs),
            uv=self.uv.to_model(),
            as_of=self.as_of,
            base=self.base.to_model(),
            wheels=tuple(wheel.to_model() for wheel in self.wheel),
            env=tuple(LockedEnv(**env.model_dump()) for env in self.env),
            record=_record(self.record) if self.record else None,
            winners=tuple(Winner(**each.model_dump() | {"over": tuple(each.over)}) for each in self.winner),
            gpu=LockedGpus(tuple(self.gpu.capabilities), self.gpu.driver) if self.gpu else None,
        )


def _record(record: _Record) -> Record:
    layers = tuple(RecordedLayer(**layer.model_dump()) for layer in record.layers)
    return Record(layer_format=record.layer_format, codec=record.codec, layers=layers, digest=record.digest)


def to_table(lock: Lock) -> dict[str, Any]:
    """The file's tables, in the file's order; what is None or empty by default is left out."""
    table: dict[str, Any] = {
        "version": LOCK_VERSION,
        "cell": lock.cell,
        "image": lock.image,
        "as-of": lock.as_of,
        "axes": dict(sorted(lock.axes.items())),
        "inputs": dict(sorted(lock.inputs.items())),
        "base": base_table(lock.base),
        "uv": _wheel_table(lock.uv),
        "env": [fields(env, _Env) for env in lock.env],
        "wheel": [_wheel_table(wheel) for wheel in lock.wheels],
    }
    if lock.gpu:
        driver = {"driver": lock.gpu.driver} if lock.gpu.driver is not None else {}
        table["gpu"] = {"capabilities": list(lock.gpu.capabilities), **driver}
    if lock.winners:
        table["winner"] = [fields(each, _Winner) | {"over": list(each.over)} for each in lock.winners]
    if lock.record:
        table["record"] = {
            "layer-format": lock.record.layer_format,
            "codec": lock.record.codec,
            "digest": lock.record.digest,
            "layers": [fields(layer, _Layer) for layer in lock.record.layers],
        }
    return table


def _wheel_table(wheel: LockedWheel) -> dict[str, Any]:
    table: dict[str, Any] = {"name": wheel.name, "version": wheel.version}
    if wheel.because is not None:
        table["because"] = wheel.because
    if wheel.via:
        table["via"] = list(wheel.via)
    table |= _file_table(wheel.file)
    if wheel.misrecorded is not None:
        table["misrecorded"] = wheel.misrecorded
    if wheel.sdist:
        build = [_wheel_table(build) for build in wheel.sdist.build_requires]
        file = wheel.sdist.file
        if git := wheel.sdist.git:
            table["git"] = {**asdict(git), "size": file.size, "sha256": file.sha256, "build": build}
        else:
            table["sdist"] = {"name": wheel.name, "version": wheel.version, **_file_table(file), "build": build}
    return table


def _file_table(file: File) -> dict[str, Any]:
    table = {"file": file.filename, "size": file.size, "sha256": file.sha256, "index": file.index}
    return table | ({"path": file.path} if file.path is not None else {})
