"""What a lock file may hold, strictly: the shape of its TOML, checked with pydantic and turned into `model`'s classes.

Locks are reviewed, but they come from outside all the same: their names, versions, reasons and paths end up in
Dockerfiles and in paths of the store, so that each kind of text has one narrow form here.
"""

from __future__ import annotations

import itertools
import re
from datetime import datetime
from typing import Annotated, Any, Literal

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from imagegen.lock.model import (
    LOCK_VERSION,
    Deb,
    File,
    Lock,
    LockedBase,
    LockedEnv,
    LockedGpus,
    LockedSdist,
    LockedWheel,
    Record,
    RecordedLayer,
    Winner,
)
from imagegen.text import unprintable


def _form(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"{value!r} is no {what}")
        return value

    return AfterValidator(check)


def _plain(value: str) -> str:
    """One line of visible text: it is shown, and stands in comments of Dockerfiles."""
    bad = unprintable(value)
    if bad is not None:
        raise ValueError(f"holds the control character {bad!r}")
    return value


def _version(value: str) -> str:
    try:
        Version(value)
    except InvalidVersion:
        raise ValueError(f"{value!r} is no version (PEP 440)") from None
    if value != value.strip():  # which Version allows
        raise ValueError(f"{value!r} is no version (PEP 440): it has white space around it")
    return value


def _package(value: str) -> str:
    if canonicalize_name(value) != value or not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", value):
        raise ValueError(f"{value!r} is no normalised package name (PEP 503)")
    return value


def _time(value: str) -> str:
    try:
        # datetime takes any character between date and time
        form = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z", value)
        valid = form is not None and datetime.fromisoformat(value) is not None
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{value!r} is no time in UTC (RFC 3339, with a trailing Z)")
    return value


def relative_path(value: str) -> str:
    """`value` if it is a plain path of a URL, without host, root or dots; else ValueError."""
    parts = value.split("/")
    if not re.fullmatch(r"[A-Za-z0-9._~%!$&'()+,;=@/-]+", value) or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{value!r} is no plain relative path")
    return value


Sha256 = Annotated[str, _form(r"[0-9a-f]{64}", "sha256 (64 lower-case hex digits)")]
Digest = Annotated[str, _form(r"sha256:[0-9a-f]{64}", "digest (sha256: and 64 lower-case hex digits)")]
Size = Annotated[int, Field(ge=0, lt=1 << 50)]
Text = Annotated[str, AfterValidator(_plain)]
Package = Annotated[str, AfterValidator(_package)]
PackageVersion = Annotated[str, AfterValidator(_version)]
Time = Annotated[str, AfterValidator(_time)]
RelativePath = Annotated[str, AfterValidator(relative_path)]
Word = Annotated[str, _form(r"[a-z0-9][a-z0-9._-]*", "name (lower-case letters, digits, dot, dash)")]
AxisValue = Annotated[str, _form(r"[a-z0-9][a-z0-9._/-]*", "value of an axis")]
FileName = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,249}", "file name")]  # file systems take 255 bytes
EnvName = Annotated[
    str, _form(r"(?!(PATH|VIRTUAL_ENV)$)[A-Za-z_][A-Za-z0-9_]*", "name of an environment variable that a lock may set")
]
Interpreter = Annotated[str, _form(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*)+", "absolute path of an interpreter")]
Capability = Annotated[str, _form(r"[0-9]{1,2}\.[0-9]", "compute capability")]
DriverVersion = Annotated[str, _form(r"[0-9]{1,5}(\.[0-9]{1,5}){0,3}", "version of a driver")]
PathGlob = Annotated[str, _form(r"(\*/|/)[A-Za-z0-9_.+*/-]+", "glob over absolute paths")]
DebName = Annotated[str, _form(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]", "Debian package name")]  # apt: "x-" removes x
DebVersion = Annotated[str, _form(r"[0-9][A-Za-z0-9.+:~-]*", "Debian version")]


_ARCHIVES = {"debian", "debian-security"}


class _Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
        defer_build=True,  # LockFile builds them all, once
    )


class _Distribution(_Table):
    """A file of an index with what it is a release of."""

    name: Package
    version: PackageVersion
    file: FileName
    size: Size
    sha256: Sha256
    index: Word
    path: RelativePath | None = None

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
    because: Text | None = None
    via: list[Package] = []
    sdist: _Sdist | None = None
    misrecorded: Text | None = None

    @model_validator(mode="after")
    def _is_a_wheel(self) -> _Wheel:
        if not self.file.endswith(".whl"):
            raise ValueError(f"{self.file} is no wheel")
        return self

    def to_model(self) -> LockedWheel:
        return LockedWheel(
            name=self.name,
            version=self.version,
            file=self.to_file(),
            via=tuple(self.via),
            because=self.because,
            sdist=self.sdist.to_model() if self.sdist else None,
            misrecorded=self.misrecorded,
        )


class _Sdist(_Distribution):
    build: list[_Wheel] = []

    @model_validator(mode="after")
    def _is_an_sdist(self) -> _Sdist:
        if not self.file.endswith(".tar.gz"):
            raise ValueError(f"{self.file} is no source distribution (PEP 625)")
        return self

    def to_model(self) -> LockedSdist:
        return LockedSdist(self.to_file(), tuple(wheel.to_model() for wheel in self.build))


class _Deb(_Table):
    name: DebName
    version: DebVersion
    architecture: Word
    size: Size
    sha256: Sha256
    archive: Word
    path: RelativePath


class _Base(_Table):
    name: Word
    kind: Literal["debian"]
    suite: Word
    interpreter: Interpreter
    archives: dict[AxisValue, Time] = {}
    debs: list[_Deb] = []

    @model_validator(mode="after")
    def _known_archives(self) -> _Base:
        known = {suite.partition("/")[0] for suite in self.archives}
        for name, archives in (("debs", {deb.archive for deb in self.debs} - known), ("archives", known - _ARCHIVES)):
            if archives:
                raise ValueError(f"{name} name an archive that is none: {', '.join(sorted(archives))}")
        return self


class _Env(_Table):
    name: EnvName
    value: Text
    because: Text


class _Gpu(_Table):
    capabilities: list[Capability]
    driver: DriverVersion | None = None


class _Winner(_Table):
    rule: Word
    distribution: Package
    over: list[Package]
    paths: PathGlob
    because: Text


class _Layer(_Table):
    name: Word
    size: Size
    digest: Digest
    diff_id: Digest
    key: Digest


class _Record(_Table):
    layer_format: int
    codec: Text
    digest: Digest
    layers: list[_Layer]


class LockFile(_Table):
    """The whole file; `to_model` gives what the rest of imagegen works with."""

    version: int
    cell: Word
    image: Word
    uv: _Wheel
    as_of: Time
    axes: dict[Word, AxisValue]
    inputs: dict[Text, Sha256]
    base: _Base
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
        base = LockedBase(
            name=self.base.name,
            kind=self.base.kind,
            suite=self.base.suite,
            interpreter=self.base.interpreter,
            archives=dict(self.base.archives),
            debs=tuple(Deb(**deb.model_dump()) for deb in self.base.debs),
        )
        return Lock(
            cell=self.cell,
            image=self.image,
            axes=dict(self.axes),
            inputs=dict(self.inputs),
            uv=self.uv.to_model(),
            as_of=self.as_of,
            base=base,
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
        "base": {
            "name": lock.base.name,
            "kind": lock.base.kind,
            "suite": lock.base.suite,
            "interpreter": lock.base.interpreter,
            "debs": [_fields(deb, _Deb) for deb in lock.base.debs],
            "archives": dict(sorted(lock.base.archives.items())),
        },
        "uv": _wheel_table(lock.uv),
        "env": [_fields(env, _Env) for env in lock.env],
        "wheel": [_wheel_table(wheel) for wheel in lock.wheels],
    }
    if lock.gpu:
        driver = {"driver": lock.gpu.driver} if lock.gpu.driver is not None else {}
        table["gpu"] = {"capabilities": list(lock.gpu.capabilities), **driver}
    if lock.winners:
        table["winner"] = [_fields(each, _Winner) | {"over": list(each.over)} for each in lock.winners]
    if lock.record:
        table["record"] = {
            "layer-format": lock.record.layer_format,
            "codec": lock.record.codec,
            "digest": lock.record.digest,
            "layers": [_fields(layer, _Layer) for layer in lock.record.layers],
        }
    return table


def _fields(value: object, table: type[_Table]) -> dict[str, Any]:
    return {name.replace("_", "-"): getattr(value, name) for name in table.model_fields}


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
        table["sdist"] = {
            "name": wheel.name,
            "version": wheel.version,
            **_file_table(wheel.sdist.file),
            "build": [_wheel_table(build) for build in wheel.sdist.build_requires],
        }
    return table


def _file_table(file: File) -> dict[str, Any]:
    table = {"file": file.filename, "size": file.size, "sha256": file.sha256, "index": file.index}
    return table | ({"path": file.path} if file.path is not None else {})
