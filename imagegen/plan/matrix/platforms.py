"""The entries of a matrix for what a stack runs on: GPUs, systems, interpreters and bases."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from imagegen.core import types as t
from imagegen.plan.matrix.model import InterpreterFile, NgcImage, System
from imagegen.plan.matrix.recipe import EnvEntry, NamedEntry


class GpuEntry(NamedEntry):
    """A GPU architecture, by the name that compilers give it: sm_90."""

    capability: t.Capability = Field(description="Compute capability.")
    family: t.Name
    products: list[t.Alias] = Field(default=[], description="What users call the cards.")
    aliases: list[t.Alias] = Field(default=[], description="Other names that users type.")
    arm64: list[t.Alias] = Field(default=[], description="The products and aliases whose host processor is arm64.")
    source: t.Text

    def gpu(self, name: str) -> t.Gpu:
        return t.Gpu(name, self.capability, self.family, tuple(self.products), tuple(self.aliases), tuple(self.arm64))


class AcceleratorEntry(NamedEntry):
    """Accelerators that are no NVIDIA GPUs, so that a question about one gets an answer that says so."""

    maker: t.Text
    names: list[t.Text] = Field(description="Globs over names in lower case without blanks, as in mi[0-9]*.")
    source: t.Text


class SystemEntry(NamedEntry):
    """A distribution's release, as far as wheels depend on it."""

    glibc: t.Minor = Field(description="0.0 for a system with musl, on which no manylinux wheel runs.")
    python: t.Minor = Field(default="0.0", description="Of its own packages.")
    aliases: list[t.Alias] = Field(default=[], description="Other names that users type: codenames, systems like it.")
    source: t.Text

    def system(self, name: str) -> System:
        return System(name, self.glibc, self.python, tuple(self.aliases))


class NgcImageEntry(NamedEntry):
    """The contents of nvcr.io/nvidia/pytorch, by its tag: 25.03."""

    torch: t.CanonicalVersion
    cuda: t.Minor
    system: t.Name
    source: t.Text

    def image(self, tag: str) -> NgcImage:
        return NgcImage(tag, self.torch, self.cuda, self.system)


class InterpreterEntry(NamedEntry):
    """A Python that cells rest on: the one of a distribution's packages, or one of python-build-standalone."""

    provider: Literal["distribution", "standalone"]
    python: t.Minor
    systems: list[t.Name] = Field(default=[], description="Of a distribution: the systems whose own Python it is.")
    path: t.AbsolutePath | None = Field(default=None, description="Of a distribution: the program.")
    version: t.PythonRelease | None = Field(default=None, description="Of a standalone build.")
    release: t.GitName | None = Field(default=None, description="Of a standalone build: the release of its archives.")
    files: dict[t.AxisValue, InterpreterFile] = Field(default={}, description="Platform -> archive.")
    source: t.Text
    date: t.Date

    @model_validator(mode="after")
    def _of_its_provider(self) -> Self:
        distribution = [bool(self.systems), self.path is not None]
        standalone = [self.version is not None, self.release is not None, bool(self.files)]
        needed, foreign = (distribution, standalone) if self.provider == "distribution" else (standalone, distribution)
        if not all(needed) or any(foreign):
            keys = {"distribution": "`systems` and `path`", "standalone": "`version`, `release` and `files`"}
            raise ValueError(f"an interpreter of a {self.provider} provider has {keys[self.provider]}, and no others")
        if self.version and not self.version.startswith(f"{self.python}."):
            raise ValueError(f"{self.version} is no release of Python {self.python}")
        if wrong := [file.path for file in self.files.values() if not file.path.startswith(f"{self.release}/")]:
            raise ValueError(f"{wrong[0]} is not a file of release {self.release}")
        return self


class BaseEntry(NamedEntry):
    """The operating-system layers under the stack: Debian's packages, or an image of a registry."""

    description: t.Text
    kind: Literal["debian", "registry"]
    suite: t.DebianSuite | None = Field(default=None, description="Of kind debian.")
    image: t.ImageReference | None = Field(default=None, description="Of kind registry; the lock pins its digest.")
    system: t.Name = Field(description="Its glibc decides which manylinux wheels fit.")
    packages: dict[t.DebianPackage, t.Text] = Field(
        default={}, description="Package -> why it is in the base; of kind registry, in a layer above the image."
    )
    env: dict[t.EnvName, EnvEntry] = Field(default={}, description="Set in every image on this base.")

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        needed, foreign = ("suite", "image") if self.kind == "debian" else ("image", "suite")
        if getattr(self, needed) is None or getattr(self, foreign) is not None:
            raise ValueError(f"a base of kind {self.kind} has `{needed}`, and no `{foreign}`")
        return self
