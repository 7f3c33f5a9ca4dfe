"""Files under matrices/ and wheels/ as users write them, as pydantic models: validation and the editors' JSON schema.

The forms of strings are in core/types.py. Unknown keys are errors.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from imagegen.compat.published_builds import PublishedBuild
from imagegen.compat.rule import PinOverride, Rule
from imagegen.compat.systems import NgcImage, System
from imagegen.core import types as t
from imagegen.core.gpu import Gpu
from imagegen.core.strict import Strict
from imagegen.spec.foundation import Interpreter
from imagegen.spec.model import Component, FileConflictRule, Index
from imagegen.spec.recipe_file import EnvEntry, ImageEnv, NamedEntry, RecipeEntry


class AcceleratorEntry(NamedEntry):
    """Accelerators other than NVIDIA's GPUs, so that a question about one gets an answer that says so."""

    maker: t.Text
    names: list[t.Text] = Field(description="Globs over names in lower case without blanks, as in mi[0-9]*.")
    source: t.Text


class BaseEntry(NamedEntry):
    """The operating-system layers under the stack: Debian's packages, or an image of a registry."""

    description: t.Text
    kind: Literal["debian", "registry"]
    suite: t.DebianSuite | None = Field(default=None, description="For kind debian.")
    image: t.ImageReference | None = Field(default=None, description="For kind registry; the lock pins its digest.")
    system: t.Name = Field(description="Its glibc decides which manylinux wheels fit.")
    packages: dict[t.DebianPackage, t.Text] = Field(
        default={}, description="Package -> why it is in the base; of kind registry, in a layer above the image."
    )
    env: ImageEnv = Field(default={}, description="Set in every image on this base.")

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        needed, foreign = ("suite", "image") if self.kind == "debian" else ("image", "suite")
        if getattr(self, needed) is None or getattr(self, foreign) is not None:
            raise ValueError(f"a base of kind {self.kind} has `{needed}`, and no `{foreign}`")
        return self


class AxisEntry(NamedEntry):
    """One dimension of the matrix."""

    description: t.Text
    values: Annotated[list[t.AxisValue], Field(min_length=1)]
    default: t.AxisValue

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.default not in self.values:
            raise ValueError(f'the default "{self.default}" is not among the values')
        if len(set(self.values)) < len(self.values):
            raise ValueError("a value is listed twice")
        return self


class ComponentUse(Strict):
    version: t.Specifier = Field(default="", description="PEP 440; none: any version that resolves.")
    extras: list[t.Distribution] = Field(default=[], description="Optional parts that its metadata names.")
    index: t.Name | None = Field(default=None, description="Index alias, instead of the component's own.")
    git: t.GitName | None = Field(default=None, description="One of the component's commits, instead of a release.")
    entry_points: list[t.Module] = Field(
        default=[], description="Modules that users start in this version, instead of the component's own."
    )
    path: t.ProjectPath | None = Field(
        default=None, description="A directory of the project with a pyproject.toml, instead of a release."
    )
    wheel: t.ProjectWheel | None = Field(default=None, description="A wheel of the project, instead of a release.")
    url: t.WheelUrl | None = Field(
        default=None, description="The address of a wheel, instead of a release of an index."
    )
    sha256: t.Sha256 | None = Field(default=None, description="Hash of the wheel at `url`.")
    uv_lock: t.PathBelow | None = Field(
        default=None, description="A uv.lock in the commit's tree that has the image's packages; nothing is resolved."
    )
    groups: list[t.Distribution] = Field(default=[], description="Dependency groups of the component's `uv_lock`.")
    from_source: bool = Field(default=False, description="Compiled here by its recipe, even where a wheel would fit.")
    because: t.Text | None = Field(
        default=None, description="Required, unless no `components` entry has this name: then it is a package of PyPI."
    )

    @model_validator(mode="after")
    def _from_a_commit(self) -> Self:
        if self.uv_lock and not self.git:
            raise ValueError("`uv_lock` is a file of a commit: `git` is missing")
        if self.groups and not self.uv_lock:
            raise ValueError("`groups` belong to a `uv_lock`, and there is none")
        return self

    @model_validator(mode="after")
    def _of_one_place(self) -> Self:
        keys = [key for key in ("path", "wheel", "url", "git", "index", "from_source") if getattr(self, key)]
        if len(keys) > 1 and {"path", "wheel", "url"} & set(keys):
            raise ValueError(f"{' and '.join(f'`{key}`' for key in keys)} name different places: keep one")
        if bool(self.url) != bool(self.sha256):
            raise ValueError(
                "`url` needs `sha256`, and `sha256` needs `url`: the hash decides which bytes are installed"
            )
        return self


class OverrideEntry(Strict):
    """A requirement that replaces all requirements of a distribution by packages of the image."""

    version: t.Specifier = Field(default="", description="PEP 440; none: any version.")
    omit: bool = Field(default=False, description="It is not installed, whatever requires it.")
    because: t.Text
    source: t.Text | None = Field(default=None, description="Where the reason was read or measured.")

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        if self.omit and self.version:
            raise ValueError("an omitted distribution has no version")
        return self


class CommandEntry(Strict):
    """A program with its arguments; no shell reads it."""

    value: Annotated[list[t.Argument], Field(min_length=1)]
    because: t.Text


class UserEntry(Strict):
    value: t.User
    because: t.Text


class WorkdirEntry(Strict):
    value: t.AbsolutePath
    because: t.Text


class ConfigEntry(Strict):
    """Fields of the image's config."""

    entrypoint: CommandEntry | None = Field(
        default=None,
        description="Runs after the startup checks, instead of the base's own, with the command behind it.",
    )
    cmd: CommandEntry | None = Field(
        default=None, description="The default command; without it and an entrypoint, /bin/bash."
    )
    user: UserEntry | None = None
    workdir: WorkdirEntry | None = None


class CopyEntry(Strict):
    source: t.RelativePath = Field(description="A file or directory, from the project's.")
    because: t.Text


class PackagePatchEntry(Strict):
    """A unified diff that is applied to the installed files of a package."""

    package: t.Distribution
    because: t.Text
    source: t.Text | None = Field(default=None, description="Where the change is from.")


class PartEntry(Strict):
    """The common fields of images, stacks and variants."""

    components: dict[t.Name, ComponentUse] = {}
    env: ImageEnv = Field(
        default={},
        description="Environment variable -> its value. In the lists LD_LIBRARY_PATH, LIBRARY_PATH and PATH, the "
        "directories of an image come before its stacks' and its base's.",
    )
    packages: dict[t.DebianPackage, t.Text] = Field(
        default={}, description="Debian package -> why it is there, in a layer above the base."
    )
    omits: dict[t.Distribution, t.Text] = Field(
        default={},
        description="Distribution that an extra of a component names and that is not installed -> why, and what does "
        "not work without it.",
    )
    overrides: dict[t.Distribution, OverrideEntry] = Field(
        default={}, description="Distribution -> the requirement that replaces all others of it."
    )
    config: ConfigEntry = ConfigEntry()
    labels: dict[t.LabelName, EnvEntry] = {}
    ports: dict[t.Port, t.Text] = Field(default={}, description="Port -> the program that listens there.")
    ldconfig: dict[t.AbsolutePath, t.Text] = Field(
        default={}, description="Directory of the image -> why the dynamic loader finds libraries in it."
    )
    files: dict[t.TargetPath, CopyEntry] = Field(
        default={}, description="Path in the image -> the file or directory of the project that is copied there."
    )
    patches: dict[t.RelativePath, PackagePatchEntry] = Field(
        default={}, description="Unified diff, from the project's directory -> the package that it changes."
    )
    accepts: dict[t.Name, t.Text] = Field(
        default={}, description="Rule that only warns of this image -> why the image works all the same."
    )


AxisChoice = Annotated[dict[t.Name, Annotated[list[t.AxisValue], Field(min_length=1)]], Field(min_length=1)]


class VariantEntry(PartEntry):
    """The differences of the cells whose axes have one of these values."""

    when: AxisChoice
    base: t.Name | None = None
    gpus: list[t.GpuName] = Field(default=[], description="Instead of the image's.")
    interpreter: t.Name | None = Field(
        default=None, description="Instead of the interpreter that base and Python give."
    )
    without: list[t.Name] = Field(default=[], description="Components that are left out.")


class StackEntry(NamedEntry, PartEntry):
    """Components and variables that images share; an image's own replace its stacks'."""

    description: t.Text
    variants: list[VariantEntry] = []


class StackFileEntry(Strict):
    """A lock file of the project that says which packages the image holds: nothing is resolved."""

    uv: t.ProjectFile | None = Field(default=None, description="A uv.lock, from the project's directory.")
    pylock: t.ProjectFile | None = Field(
        default=None, description="A pylock.toml (PEP 751), from the project's directory."
    )
    extras: list[t.Distribution] = Field(default=[], description="Extras of its project.")
    groups: list[t.Distribution] = Field(default=[], description="Dependency groups of its project.")

    @model_validator(mode="after")
    def _one_file(self) -> Self:
        if bool(self.uv) == bool(self.pylock):
            raise ValueError("a stack is of one file: either `uv` or `pylock`")
        return self


class EnvironmentEntry(Strict):
    """A Python environment of an image with several; it has the content of a cell's image."""

    cell: t.Word = Field(description="A cell with one environment, as cpu-grpo-cpu-py311.")
    because: t.Text


class ImageEntry(NamedEntry, PartEntry):
    """A named member of the matrix, as the user types it; it may extend another one."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["extends"]},
                {"required": ["description", "purpose", "base"]},
                {"required": ["description", "purpose", "environments", "default"]},
            ]
        }
    )

    extends: t.Name | None = Field(
        default=None, description="An image that gives everything that this entry does not change."
    )
    without: list[t.PartName] = Field(
        default=[],
        description="Components, variables, Debian packages and overrides of the extended image that are left out.",
    )
    description: t.Text | None = Field(default=None, description="Required unless the image extends another.")
    purpose: t.Text | None = Field(default=None, description="Required unless the image extends another.")
    flagship: bool = Field(default=False, description="It is proposed among images that fit equally well.")
    base: t.Name | None = Field(default=None, description="Required unless the image extends another.")
    interpreter: t.Name | None = Field(
        default=None, description="Instead of the interpreter that base and Python give."
    )
    gpus: list[t.GpuName] = Field(default=[], description="GPUs on which its CUDA cells run.")
    axes: dict[t.Name, Annotated[list[t.AxisValue], Field(min_length=1)]] = Field(
        default={}, description="Axis -> the values that this image is made for; only the axis's default if absent."
    )
    exclude: list[AxisChoice] = Field(
        default=[], description="Cells that there are not: each item names values on some axes, as `when` does."
    )
    stack: StackFileEntry | None = Field(
        default=None, description="A lock file of the project instead of a resolution; `components` are packages of it."
    )
    stacks: list[t.Name] = []
    variants: list[VariantEntry] = []
    environments: dict[t.EnvironmentName, EnvironmentEntry] = Field(
        default={}, description="Several Python environments; an image with them has no other keys of content."
    )
    default: t.EnvironmentName | None = Field(
        default=None, description="The one of `environments` that is first on PATH, and at /opt/venv."
    )

    @model_validator(mode="after")
    def _of_environments(self) -> Self:
        if not self.environments:
            if self.default:
                raise ValueError("`default` names one of `environments`, and there are none")
            return self
        if len(self.environments) == 1:
            raise ValueError("an image of one environment equals its cell: name two or more")
        if self.default not in self.environments:
            raise ValueError(f"`default` names one of {', '.join(sorted(self.environments))}")
        if other := sorted(
            self.model_fields_set - {"description", "purpose", "flagship", "environments", "default", "override"}
        ):
            raise ValueError(f"`{other[0]}` belongs to the cells of its environments: change it there")
        return self


class RecordExceptionEntry(NamedEntry):
    """A wheel whose RECORD contradicts it, and that is accepted by its sha256; its files' hashes are computed."""

    file: t.WheelName
    sha256: t.Sha256
    because: t.Text
    source: t.Text
    date: t.Date


class MatrixFile(Strict):
    """One YAML file of a matrix; each entry by name."""

    indexes: dict[t.Name, Index] = {}
    systems: dict[t.Name, System] = {}
    ngc_images: dict[t.Name, NgcImage] = {}
    gpus: dict[t.GpuName, Gpu] = {}
    accelerators: dict[t.Name, AcceleratorEntry] = {}
    interpreters: dict[t.Name, Interpreter] = {}
    bases: dict[t.Name, BaseEntry] = {}
    axes: dict[t.Name, AxisEntry] = {}
    components: dict[t.Distribution, Component] = {}
    stacks: dict[t.Name, StackEntry] = {}
    images: dict[t.Name, ImageEntry] = {}
    rules: dict[t.Name, Rule] = {}
    builds: dict[t.Name, PublishedBuild] = {}
    pin_overrides: dict[t.Name, PinOverride] = {}
    file_conflicts: dict[t.Name, FileConflictRule] = {}
    record_exceptions: dict[t.Name, RecordExceptionEntry] = {}
    recipes: dict[t.Distribution, RecipeEntry] = {}


SECTIONS = tuple(MatrixFile.model_fields)
