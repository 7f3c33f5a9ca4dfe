"""Recipes under wheels/ as users write them, as pydantic models, and what the loader makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from imagegen.core import types as t
from imagegen.core.strict import Strict
from imagegen.core.validation import Check
from imagegen.spec.recipe import Architectures, Commit, Cost, SdistFile

if TYPE_CHECKING:
    pass


class NamedEntry(Strict):
    """A named entry of a matrix file."""

    override: bool = Field(default=False, description="Replaces the entry of this name from an earlier directory.")


class EnvEntry(Strict):
    value: t.EnvValue
    because: t.Text


def _require_absolute(env: dict[str, EnvEntry]) -> dict[str, EnvEntry]:
    for name, entry in env.items():
        t.require_absolute(name, entry.value)
    return env


ImageEnv = Annotated[dict[t.EnvName, EnvEntry], Check(_require_absolute)]


def join_env(before: Mapping[str, EnvEntry], after: Mapping[str, EnvEntry]) -> dict[str, EnvEntry]:
    """Return the variables of both; a value of `after` replaces one of `before`, but search paths are joined."""
    joined = {
        name: EnvEntry(
            value=t.join_paths(after[name].value, before[name].value),
            because=" ".join(dict.fromkeys((after[name].because, before[name].because))),
        )
        for name in t.SEARCH_PATHS & before.keys() & after.keys()
    }
    return {**before, **after, **joined}


class PatchEntry(Strict):
    """A unified diff below the recipe's own directory, applied with -p1."""

    file: t.PathBelow
    sha256: t.Sha256
    because: t.Text


class ReleaseEntry(Strict):
    """The source of one version, and the fields that differ from the recipe for this version."""

    sdist: SdistFile | None = None
    git: Commit | None = None
    path: t.RelativePath | None = Field(default=None, description="A file or directory, from the project's.")
    requires: list[t.RequirementText] | None = Field(default=None, description="Instead of the recipe's.")
    patches: list[PatchEntry] | None = Field(default=None, description="Instead of the recipe's.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if [self.sdist, self.git, self.path].count(None) != 2:
            raise ValueError("a release has either `sdist` or `git` or `path`")
        return self


class PrefixEntry(Strict):
    """The installation of sources that are not a Python package, below the prefix /opt/venv."""

    commands: Annotated[list[Annotated[list[t.Argument], Field(min_length=1)]], Field(min_length=1)] = Field(
        description="Programs with their arguments, run in the sources' directory; no shell reads them. {jobs}, "
        "{prefix} and {destdir} are replaced."
    )
    files: Annotated[list[t.PathBelow], Field(min_length=1)] = Field(description="Installed files, from the prefix.")


class RecipeEntry(NamedEntry):
    """The recipe of a component's source build, the same for all cells; its name is the component's."""

    releases: Annotated[dict[t.CanonicalVersion, ReleaseEntry], Field(min_length=1)]
    requires: list[t.RequirementText] = Field(default=[], description="Requirements of the wheel.")
    build_requires: list[t.ExactPin] = Field(default=[], description="Kept apart from the cell's own packages.")
    against: list[t.Distribution] = Field(default=[], description="Packages of the cell that the build reads.")
    patches: list[PatchEntry] = []
    env: dict[t.BuildEnvName, EnvEntry] = {}
    architectures: Architectures | None = Field(default=None, description="None: nothing in it is for a GPU.")
    modules: Annotated[list[t.Module], Field(min_length=1)] | None = Field(
        default=None, description="Extensions that the wheel must hold."
    )
    prefix: PrefixEntry | None = Field(
        default=None, description="Instead of `modules`, for sources that are not a Python package."
    )
    jobs: t.EnvName | None = Field(default=None, description="The variable that takes the number of jobs.")
    threads: t.EnvName | None = Field(default=None, description="The variable for nvcc's threads in each job.")
    toolkit: t.Specifier = Field(default="", description="CUDA toolkits that it takes; none: any.")
    cost: Cost | None = None
    source: t.Text

    @model_validator(mode="after")
    def _modules_or_prefix(self) -> Self:
        if (self.modules is None) == (self.prefix is None):
            raise ValueError("a recipe has either `modules` or a `prefix`: they say what must have been compiled")
        return self

    @model_validator(mode="after")
    def _each_variable_once(self) -> Self:
        variables = [
            variable
            for variable in (self.jobs, self.threads, self.architectures and self.architectures.variable)
            if variable
        ]
        if twice := sorted({name for name in variables if variables.count(name) > 1 or name in self.env}):
            raise ValueError(f"{', '.join(twice)}: a variable is for one thing, jobs, threads, architectures or `env`")
        return self
