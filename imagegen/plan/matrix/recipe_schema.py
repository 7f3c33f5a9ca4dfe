"""What users write of recipes under wheels/, as pydantic models; the rest is in schema.py."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from imagegen.plan.matrix import fields as f


class Strict(BaseModel):
    """The base of all parts of a matrix file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)  # MatrixFile builds them all


class Entry(Strict):
    """A named entry of a matrix file."""

    override: bool = Field(default=False, description="Replaces the entry of this name from an earlier directory.")


class EnvEntry(Strict):
    value: f.EnvValue
    because: f.Text


class SdistFileEntry(Strict):
    """A source distribution of the default index."""

    file: f.SdistName
    sha256: f.Sha256
    size: f.Count = Field(description="Bytes.")


class SubmoduleEntry(Strict):
    """A repository that the commit's tree wants at `path`."""

    path: f.PathBelow
    url: f.GitUrl
    commit: f.GitObject
    tree: f.GitObject


class CommitEntry(Strict):
    """A commit, with every submodule that the build reads."""

    url: f.GitUrl
    commit: f.GitObject
    tree: f.GitObject
    ref: f.GitRef | None = Field(default=None, description="A tag or branch that must still lead to the commit.")
    submodules: list[SubmoduleEntry] = []


class PatchEntry(Strict):
    """A unified diff below the recipe's own directory, applied with -p1."""

    file: f.PathBelow
    sha256: f.Sha256
    because: f.Text


class ReleaseEntry(Strict):
    """Where the sources of a version are, and what is so for this version alone."""

    sdist: SdistFileEntry | None = None
    git: CommitEntry | None = None
    path: f.RelativePath | None = Field(default=None, description="A file or directory, from the project's.")
    requires: list[f.RequirementText] | None = Field(default=None, description="In place of the recipe's.")
    patches: list[PatchEntry] | None = Field(default=None, description="In place of the recipe's.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if [self.sdist, self.git, self.path].count(None) != 2:
            raise ValueError("a release has either `sdist` or `git` or `path`")
        return self


class ArchitecturesEntry(Strict):
    """The variable that says for which GPUs, and what it calls each; two may share a name."""

    variable: f.BuildEnvName
    separator: Annotated[str, f.string(r"[;, ]", 1)]
    names: Annotated[dict[f.Capability, Annotated[str, f.string(r"[0-9]{1,3}(?:\.[0-9])?[af]?")]], Field(min_length=1)]


class CostEntry(Strict):
    """What compiling takes, measured with one nvcc thread for one architecture."""

    units: f.Count = Field(description="Files that ninja compiles.")
    seconds: f.Seconds = Field(description="Of a processor, for a unit.")
    memory: f.Gigabytes = Field(description="Of a thread on average, at the build's peak.")
    largest: f.Gigabytes = Field(description="Of the largest process.")
    source: f.Text


class RecipeEntry(Entry):
    """How a component is compiled, whichever the cell; its name is the component's."""

    releases: Annotated[dict[f.Release, ReleaseEntry], Field(min_length=1)]
    requires: list[f.RequirementText] = Field(default=[], description="What the wheel will require.")
    build_requires: list[f.ExactPin] = Field(default=[], description="Kept apart from the cell's own packages.")
    against: list[f.Distribution] = Field(default=[], description="Packages of the cell that the build reads.")
    patches: list[PatchEntry] = []
    env: dict[f.BuildEnvName, EnvEntry] = {}
    architectures: ArchitecturesEntry | None = Field(default=None, description="None: nothing in it is for a GPU.")
    modules: Annotated[list[f.Module], Field(min_length=1)] = Field(description="Extensions that the wheel must hold.")
    jobs: f.EnvName | None = Field(default=None, description="The variable that takes the number of jobs.")
    threads: f.EnvName | None = Field(default=None, description="The variable for nvcc's threads in each job.")
    toolkit: f.Specifier = Field(default="", description="CUDA toolkits that it takes; none: any.")
    cost: CostEntry | None = None
    source: f.Text

    @model_validator(mode="after")
    def _each_variable_once(self) -> Self:
        named = [each for each in (self.jobs, self.threads, self.architectures and self.architectures.variable) if each]
        if twice := sorted({name for name in named if named.count(name) > 1 or name in self.env}):
            raise ValueError(f"{', '.join(twice)}: a variable is for one thing, jobs, threads, architectures or `env`")
        return self
