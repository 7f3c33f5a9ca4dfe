"""The part of a lock file that says what its base is: Debian's packages, or the layers of a registry's image."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from imagegen.core import registry
from imagegen.plan.distributions import archives as named_archives
from imagegen.plan.lock import forms as f
from imagegen.plan.lock.base import LockedBase
from imagegen.plan.lock.forms import CONFIG, fields
from imagegen.plan.lock.packages_schema import DebTable


class _Table(BaseModel):
    model_config = CONFIG


class _BaseLayer(_Table):
    media_type: f.MediaType
    digest: f.Digest
    size: f.Size
    diff_id: f.Digest


class _Image(_Table):
    """What a base of kind registry is made of, and what its config says."""

    digest: f.Digest
    config: f.Digest
    env: list[f.Variable] = []
    entrypoint: list[f.Text] = []
    command: list[f.Text] = []
    user: f.Text = ""
    directory: f.Text = ""
    layers: Annotated[list[_BaseLayer], Field(min_length=1, max_length=127)]

    def to_model(self) -> registry.Image:
        config = registry.Config(
            env=tuple(self.env),
            entrypoint=tuple(self.entrypoint),
            command=tuple(self.command),
            user=self.user,
            directory=self.directory,
        )
        layers = tuple(registry.Layer(**layer.model_dump()) for layer in self.layers)
        return registry.Image(self.digest, self.config, layers, config)


class Base(_Table):
    name: f.Word
    kind: Literal["debian", "registry"]
    suite: f.Word | None = None
    image: f.ImageName | None = None
    content: _Image | None = None
    archives: dict[f.AxisValue, f.Time] = {}
    debs: list[DebTable] = []

    @model_validator(mode="after")
    def _of_its_kind(self) -> Base:
        registered = (self.image is not None, self.content is not None)
        if registered != (self.kind == "registry",) * 2 or (self.suite is None) != (self.kind == "registry"):
            raise ValueError("a base of kind debian has a suite, one of kind registry an image and its content")
        if self.kind == "registry" and (self.debs or self.archives):
            raise ValueError("a base of kind registry has no Debian packages of ours")
        return self

    @model_validator(mode="after")
    def _known_archives(self) -> Base:
        known = {suite.partition("/")[0] for suite in self.archives}
        for name, archives in (
            ("debs", {deb.archive for deb in self.debs} - known),
            ("archives", known - named_archives().keys()),
        ):
            if archives:
                raise ValueError(f"{name} name an archive that is none: {', '.join(sorted(archives))}")
        return self

    def to_model(self) -> LockedBase:
        return LockedBase(
            name=self.name,
            kind=self.kind,
            suite=self.suite,
            archives=dict(self.archives),
            debs=tuple(deb.to_model() for deb in self.debs),
            image=self.image,
            content=self.content.to_model() if self.content else None,
        )


def base_table(base: LockedBase) -> dict[str, Any]:
    table: dict[str, Any] = {"name": base.name, "kind": base.kind}
    if base.content is None:
        return table | {
            "suite": base.suite,
            "debs": [fields(deb, DebTable) for deb in base.debs],
            "archives": dict(sorted(base.archives.items())),
        }
    image, config = base.content, base.content.config
    content: dict[str, Any] = {
        "digest": image.digest,
        "config": image.config_digest,
        "env": list(config.env),
        "entrypoint": list(config.entrypoint),
        "command": list(config.command),
        "user": config.user,
        "directory": config.directory,
        "layers": [fields(layer, _BaseLayer) for layer in image.layers],
    }
    return table | {"image": base.image, "content": {name: value for name, value in content.items() if value}}
