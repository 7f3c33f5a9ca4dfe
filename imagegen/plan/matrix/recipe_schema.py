"""Recipes under wheels/ as users write them, as pydantic models; the other sections are in schema.py."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from imagegen.core import types as t
from imagegen.core.git import Submodule
from imagegen.core.types import Strict
from imagegen.plan.matrix.recipe import Architectures


class Entry(Strict):
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


class RecipeEntry(Entry):
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
