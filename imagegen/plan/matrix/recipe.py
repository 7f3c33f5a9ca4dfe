"""Recipes of source builds: the files under wheels/, complete and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from imagegen.core import types as t
from imagegen.core.errors import Location
from imagegen.core.git import Submodule
from imagegen.core.types import Part, Strict
from imagegen.plan.matrix.model import EnvVar


@dataclass(frozen=True)
class SdistFile:
    """A source distribution of the default index."""

    filename: str
    sha256: str
    size: int  # bytes


@dataclass(frozen=True)
class Commit:
    """A commit of a repository, known by its hash and its tree's, with all submodules that the build reads."""

    url: str
    commit: str  # 40 hex digits
    tree: str  # 40 hex digits
    ref: str | None  # the tag or branch that users know it by, which must still lead to it; None: not asked
    submodules: tuple[Submodule, ...]  # sorted by path


@dataclass(frozen=True)
class LocalSource:
    """An sdist, or a directory with sources, on the disk of the building machine; the lock pins its hash."""

    path: Path
    where: Location | None = field(default=None, compare=False)  # what says so


@dataclass(frozen=True)
class Patch:
    """A unified diff beside the recipe, applied with `patch -p1` in the order given."""

    path: Path
    sha256: str
    because: str


@dataclass(frozen=True)
class Architectures(Part):
    """The variable that gives a build its GPUs: their names, ascending, joined by `separator`. Two may share a name."""

    variable: t.BuildEnvName  # "TORCH_CUDA_ARCH_LIST", "FLASH_ATTN_CUDA_ARCHS"
    separator: Annotated[str, t.string(r"[;, ]", 1)]
    names: Annotated[  # compute capability -> its name there: "10.3" -> "100"
        Mapping[t.Capability, Annotated[str, t.string(r"[0-9]{1,3}(?:\.[0-9])?[af]?")]], Field(min_length=1)
    ]


@dataclass(frozen=True)
class Cost:
    """The measured cost of compiling: per nvcc thread, for one architecture. `source` has place and date of the
    measurement.
    """

    units: int  # files that ninja compiles
    seconds: float  # CPU seconds of a unit
    memory: int  # bytes of a thread on average, at the build's peak
    largest: int  # bytes of the largest process
    source: str


@dataclass(frozen=True)
class ReleaseOverride:
    """The overrides of one release; None: the recipe's own value."""

    requires: tuple[str, ...] | None
    patches: tuple[Patch, ...] | None


@dataclass(frozen=True)
class Recipe:
    """The recipe of one component, for every cell. `of` returns it for one release."""

    component: str
    releases: Mapping[str, SdistFile | Commit | LocalSource]  # version -> its source
    requires: tuple[str, ...]  # PEP 508: what the wheel will require; the resolution reads it here
    build_requires: tuple[str, ...]  # exact pins, kept apart from the cell's own packages
    against: tuple[str, ...]  # packages of the cell whose headers, libraries or modules the build reads: ("torch",)
    patches: tuple[Patch, ...]
    env: tuple[EnvVar, ...]
    architectures: Architectures | None  # None: nothing in it is for a GPU
    modules: tuple[str, ...]  # extension modules that the wheel must hold: ("flash_attn_2_cuda",)
    jobs: str | None  # the variable with which it takes the number of jobs; None: it compiles one file at a time
    threads: str | None  # the variable for nvcc's threads per job; None: it has none
    toolkit: str  # PEP 440 specifier of the CUDA toolkits that it takes, may be empty
    cost: Cost | None  # None: not measured
    source: str  # where the facts come from
    own: Mapping[str, ReleaseOverride] = field(default_factory=dict)  # version -> where that release differs
    where: Location | None = field(default=None, compare=False)  # its entry

    def of(self, version: str) -> Recipe:
        """The recipe of this release alone; of one that it does not know, it has no sources."""
        own = self.own.get(version, ReleaseOverride(None, None))
        return replace(
            self,
            releases={each: source for each, source in self.releases.items() if each == version},
            requires=self.requires if own.requires is None else own.requires,
            patches=self.patches if own.patches is None else own.patches,
            own={},
        )


# Recipes under wheels/ as users write them, as pydantic models; the other sections are in schema.py.


class NamedEntry(Strict):
    """A named entry of a matrix file."""

    override: bool = Field(default=False, description="Replaces the entry of this name from an earlier directory.")


class EnvEntry(Strict):
    value: t.EnvValue
    because: t.Text


class SdistFileEntry(Strict):
    """A source distribution of the default index."""

    file: t.SdistName
    sha256: t.Sha256
    size: t.Count = Field(description="Bytes.")


class CommitEntry(Strict):
    """A commit, with every submodule that the build reads."""

    url: t.GitUrl
    commit: t.GitObject
    tree: t.GitObject
    ref: t.GitRef | None = Field(default=None, description="A tag or branch that must still lead to the commit.")
    submodules: list[Submodule] = []


class PatchEntry(Strict):
    """A unified diff below the recipe's own directory, applied with -p1."""

    file: t.PathBelow
    sha256: t.Sha256
    because: t.Text


class ReleaseEntry(Strict):
    """The source of one version, and the fields that differ from the recipe for this version."""

    sdist: SdistFileEntry | None = None
    git: CommitEntry | None = None
    path: t.RelativePath | None = Field(default=None, description="A file or directory, from the project's.")
    requires: list[t.RequirementText] | None = Field(default=None, description="In place of the recipe's.")
    patches: list[PatchEntry] | None = Field(default=None, description="In place of the recipe's.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if [self.sdist, self.git, self.path].count(None) != 2:
            raise ValueError("a release has either `sdist` or `git` or `path`")
        return self


class CostEntry(Strict):
    """The cost of compiling, measured with one nvcc thread for one architecture."""

    units: t.Count = Field(description="Files that ninja compiles.")
    seconds: t.Seconds = Field(description="Of a processor, for a unit.")
    memory: t.Gigabytes = Field(description="Of a thread on average, at the build's peak.")
    largest: t.Gigabytes = Field(description="Of the largest process.")
    source: t.Text


class RecipeEntry(NamedEntry):
    """The recipe of a component's source build, the same for all cells; its name is the component's."""

    releases: Annotated[dict[t.CanonicalVersion, ReleaseEntry], Field(min_length=1)]
    requires: list[t.RequirementText] = Field(default=[], description="What the wheel will require.")
    build_requires: list[t.ExactPin] = Field(default=[], description="Kept apart from the cell's own packages.")
    against: list[t.Distribution] = Field(default=[], description="Packages of the cell that the build reads.")
    patches: list[PatchEntry] = []
    env: dict[t.BuildEnvName, EnvEntry] = {}
    architectures: Architectures | None = Field(default=None, description="None: nothing in it is for a GPU.")
    modules: Annotated[list[t.Module], Field(min_length=1)] = Field(description="Extensions that the wheel must hold.")
    jobs: t.EnvName | None = Field(default=None, description="The variable that takes the number of jobs.")
    threads: t.EnvName | None = Field(default=None, description="The variable for nvcc's threads in each job.")
    toolkit: t.Specifier = Field(default="", description="CUDA toolkits that it takes; none: any.")
    cost: CostEntry | None = None
    source: t.Text

    @model_validator(mode="after")
    def _each_variable_once(self) -> Self:
        named = [each for each in (self.jobs, self.threads, self.architectures and self.architectures.variable) if each]
        if twice := sorted({name for name in named if named.count(name) > 1 or name in self.env}):
            raise ValueError(f"{', '.join(twice)}: a variable is for one thing, jobs, threads, architectures or `env`")
        return self
