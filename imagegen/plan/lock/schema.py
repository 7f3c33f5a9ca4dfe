"""What a lock file may hold, strictly: the shape of its TOML, checked with pydantic and turned into `model`'s classes.

Locks are reviewed, but they come from outside all the same: their names, versions, reasons and paths end up in
Dockerfiles and in paths of the store, so that each kind of text has one narrow form here.
"""

from __future__ import annotations

import itertools
from typing import Any

from pydantic import BaseModel, model_validator

from imagegen.plan.lock import forms as f
from imagegen.plan.lock.base_schema import Base, base_table
from imagegen.plan.lock.distribution_schema import Build, Wheel, build_table, wheel_table
from imagegen.plan.lock.forms import CONFIG, fields
from imagegen.plan.lock.interpreter_schema import Interpreter, interpreter_table
from imagegen.plan.lock.model import LOCK_VERSION, Lock, LockedEnv, LockedGpus, Record, RecordedLayer, Winner
from imagegen.plan.lock.packages_schema import Packages, packages_table


class _Table(BaseModel):
    model_config = CONFIG


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
    uv: Wheel
    as_of: f.Time
    axes: dict[f.Word, f.AxisValue]
    inputs: dict[f.Text, f.Sha256]
    base: Base
    interpreter: Interpreter
    packages: Packages | None = None
    gpu: _Gpu | None = None
    env: list[_Env] = []
    build: list[Build] = []
    wheel: list[Wheel] = []
    winner: list[_Winner] = []
    record: _Record | None = None

    @model_validator(mode="after")
    def _consistent(self) -> LockFile:
        for needed in ("platform", "python"):
            if needed not in self.axes:
                raise ValueError(f"axes lack {needed!r}")
        for kind, names in (
            ("wheels", [wheel.name for wheel in self.wheel]),
            ("builds", [build.name for build in self.build]),
            ("env", [env.name for env in self.env]),
            ("winners", [winner.rule for winner in self.winner]),
            ("debs", [deb.name for deb in self.base.debs]),
            ("packages.debs", [deb.name for deb in self.packages.debs] if self.packages else []),
        ):
            if names != sorted(set(names)):
                out = next((b for a, b in itertools.pairwise(names) if b <= a), "")
                raise ValueError(f"{kind} are not sorted by name, each once: see {out!r}")
        wheels, builds = {wheel.name for wheel in self.wheel}, {build.name for build in self.build}
        if both := wheels & builds:
            raise ValueError(f"{min(both)} is a wheel and a build")
        for build in self.build:
            if unknown := set(build.against) - wheels:
                raise ValueError(f"{build.name} is built against {min(unknown)}, of which the lock has no wheel")
        for winner in self.winner:
            if unknown := {winner.distribution, *winner.over} - wheels - builds:
                raise ValueError(f"winner {winner.rule} speaks of {min(unknown)}, which the lock has not")
        return self

    @model_validator(mode="after")
    def _of_the_axis(self) -> LockFile:
        if self.interpreter.python != self.axes.get("python"):
            raise ValueError(f"axes name another Python than the interpreter, {self.interpreter.version}")
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
            interpreter=self.interpreter.to_model(),
            wheels=tuple(wheel.to_model() for wheel in self.wheel),
            env=tuple(LockedEnv(**env.model_dump()) for env in self.env),
            record=_record(self.record) if self.record else None,
            winners=tuple(Winner(**each.model_dump() | {"over": tuple(each.over)}) for each in self.winner),
            gpu=LockedGpus(tuple(self.gpu.capabilities), self.gpu.driver) if self.gpu else None,
            builds=tuple(build.to_model() for build in self.build),
            added=self.packages.to_model() if self.packages else None,
        )


def _record(record: _Record) -> Record:
    layers = tuple(RecordedLayer(**layer.model_dump()) for layer in record.layers)
    return Record(layer_format=record.layer_format, codec=record.codec, layers=layers, digest=record.digest)


def to_table(lock: Lock) -> dict[str, Any]:
    """The file's tables, in the file's order; what is None or empty by default is left out.

    So are wheels that a source build made: its build stands for each.
    """
    table: dict[str, Any] = {
        "version": LOCK_VERSION,
        "cell": lock.cell,
        "image": lock.image,
        "as-of": lock.as_of,
        "axes": dict(sorted(lock.axes.items())),
        "inputs": dict(sorted(lock.inputs.items())),
        "base": base_table(lock.base),
        "interpreter": interpreter_table(lock.interpreter),
        **({"packages": packages_table(lock.added)} if lock.added else {}),
        "uv": wheel_table(lock.uv),
        "env": [fields(env, _Env) for env in lock.env],
        **({"build": [build_table(build) for build in lock.builds]} if lock.builds else {}),
        "wheel": [wheel_table(wheel) for wheel in lock.wheels if wheel.build is None],
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
