"""The matrix as data: components, requirements, file-conflict overrides, settings of images, and cells.

Frozen. The loader makes it of validated entries, with every name resolved; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args
from urllib.parse import unquote

from packaging.version import Version

from imagegen.compat.rule import Override, cuda_version
from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.errors import Location
from imagegen.core.types import Gpu, MatrixEntry, Part
from imagegen.spec.foundation import Base, Interpreter

if TYPE_CHECKING:
    from imagegen.spec.recipe import Recipe


@dataclass(frozen=True)
class FileConflictRule(MatrixEntry):
    """A file-conflict override: at `paths`, the files of `owner` are installed, and the files of `over` left out."""

    id: str
    owner: t.Distribution
    over: Annotated[  # sorted
        tuple[t.Distribution, ...], t.field_info(min_length=1), t.Check(lambda names: tuple(sorted(set(names))))
    ]
    paths: Annotated[t.PathGlob, t.doc("Glob over absolute paths in the image, as of fnmatch; * goes over slashes.")]
    because: t.Text
    source: t.Text
    date: t.Date
    versions: Annotated[t.Specifier, t.doc("Releases of `owner` to which this applies; without it, all.")] = ""

    def check(self) -> None:
        if self.owner in self.over:
            raise ValueError(f"{self.owner} cannot win over itself")


@dataclass(frozen=True)
class Index(MatrixEntry):
    """A package index. Only `pypi` has no url: its address comes from the user's environment."""

    alias: str  # locks name an index only by it, and stay free of hosts
    url: Annotated[t.Url | None, t.field_info(default=None)]
    description: t.Text


@dataclass(frozen=True)
class Sdist(Part):
    """Static metadata of a release that has no wheel, so that resolving it runs none of its code."""

    version: t.PackageVersion
    requires: Annotated[tuple[t.RequirementText, ...], t.field_info(default=())]
    build_requires: tuple[t.ExactPin, ...]  # of its build backend


@dataclass(frozen=True)
class GitSource:
    """A commit of a repository, by hash: its tree decides what it holds. Metadata as in Sdist.

    `subdirectory` is the folder of the tree that is the distribution's project; "" is the tree itself. `exclude` names
    the top-level entries of the tree that the archive leaves out, sorted.
    """

    name: str  # how the matrix calls it: "v0.9.0"
    url: str  # "https://github.com/volcengine/verl"
    commit: str  # 40 hex digits
    tree: str  # 40 hex digits
    metadata: Sdist
    subdirectory: str = ""
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class GitEntry(Sdist):
    """A commit of a repository, with the same static metadata; the tree's hash verifies the content that was read."""

    url: t.GitUrl
    commit: t.GitObject
    tree: t.GitObject
    subdirectory: Annotated[
        t.PathBelow | None, t.doc("The project's folder in the tree, if not its root.", default=None)
    ]
    exclude: Annotated[
        tuple[t.TreeName, ...],
        t.doc("Top-level files and folders of the tree that are neither fetched nor packed.", default=()),
    ]


def _git_sources(entries: Mapping[str, GitEntry]) -> dict[str, GitSource]:
    return {
        name: GitSource(
            name,
            entry.url,
            entry.commit,
            entry.tree,
            Sdist(entry.version, entry.requires, entry.build_requires),
            entry.subdirectory or "",
            tuple(sorted(set(entry.exclude))),
        )
        for name, entry in entries.items()
    }


@dataclass(frozen=True)
class OwnSource:
    """A directory or a wheel file of the project that gives a package; the lock pins its hash."""

    kind: Literal["path", "wheel"]
    path: str  # from the project's directory; "." is that directory
    where: Location = field(compare=False)  # the line that names it


@dataclass(frozen=True)
class StackFile:
    """A lock file of the project that has the packages of an image, with the chosen extras and dependency groups."""

    kind: Literal["uv", "pylock"]
    path: str  # from the project's directory
    extras: tuple[str, ...]  # sorted
    groups: tuple[str, ...]  # sorted
    where: Location = field(compare=False)  # the line that names it


@dataclass(frozen=True)
class Component(MatrixEntry):
    """Something with a version that the matrix chooses."""

    UNWRITTEN = ("declared",)

    name: str
    package: Annotated[
        str,
        t.Written(t.Distribution | None, lambda name: name or ""),
        t.doc("Name on the index, if not the entry's.", default="", json_schema_extra={"default": None}),
    ]
    description: t.Text
    imports: Annotated[tuple[t.Module, ...], t.doc("Modules that must import where this is installed.", default=())]
    sdist: Sdist | None = None
    source: Annotated[t.Text | None, t.doc("Where the facts in this entry come from.")] = None
    index: Annotated[Mapping[t.AxisValue, t.Name], t.doc("Value of the cuda axis -> index alias.", **t.EMPTY)] = field(
        default_factory=dict
    )
    local: Annotated[
        Mapping[t.AxisValue, t.LocalLabel], t.doc("Value of the cuda axis -> local version.", **t.EMPTY)
    ] = field(default_factory=dict)
    pypi_build: Annotated[
        t.Distribution | None,
        t.doc(
            "Component whose harvested releases state for which CUDA PyPI's build is: a cell of that CUDA takes this "
            "component from PyPI, any other from `index`."
        ),
    ] = None
    aliases: Annotated[tuple[t.Alias, ...], t.doc("Other names that users type.")] = ()
    git: Annotated[
        Mapping[str, GitSource],
        t.Written(dict[t.GitName, GitEntry], _git_sources),
        t.doc("Commits that images may ask for, by a name.", **t.EMPTY),
    ] = field(default_factory=dict)
    compiled: Annotated[t.Flag, t.doc("Its sources need a compiler: no wheel is made of them here.")] = False
    entry_points: Annotated[
        tuple[t.Module, ...], t.doc("Modules that users start: everything that they import must be installed.")
    ] = ()
    declared: bool = True  # False: no `components` entry has it; it is whatever package the index has by this name

    def named(self, name: str) -> Self:
        return replace(self, name=name, package=self.package or name)


@dataclass(frozen=True)
class WheelAddress:
    """A wheel at an address of its own, by the hash of its bytes."""

    url: str
    sha256: str

    @property
    def filename(self) -> str:
        return unquote(self.url.rpartition("/")[2])

    @property
    def version(self) -> Version:
        from packaging.utils import parse_wheel_filename  # late: few commands read such an address

        return parse_wheel_filename(self.filename)[1]


@dataclass(frozen=True)
class Requirement:
    """A component as a cell requires it."""

    component: Component
    specifier: str  # PEP 440, may be empty: any version
    because: str
    index: str  # index alias in this cell
    git: GitSource | None = None  # instead of a release of the index
    extras: tuple[str, ...] = ()  # sorted
    from_source: bool = False  # compiled by its recipe, even where a wheel would fit
    uv_lock: str | None = None  # path in the tree of `git` of the uv.lock that says all that the cell holds
    groups: tuple[str, ...] = ()  # sorted; dependency groups of `uv_lock`
    own: OwnSource | None = None  # instead of a release of the index
    address: WheelAddress | None = None  # instead of a release of the index

    @property
    def label(self) -> str | None:
        """The local version of every build of the component on its index: "cu128"; None where builds have none."""
        names = (self.component.local.get(cuda) for cuda, alias in self.component.index.items() if alias == self.index)
        return next(names, None)

    @property
    def pep508(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.component.package}{extras}{self.specifier}"


@dataclass(frozen=True)
class EnvVar(Part):
    """An environment variable of an image or a build. The types are a lock's, of values that a matrix has admitted."""

    name: t.EnvName
    value: t.Line
    because: t.Line


ConfigName = Literal["cmd", "entrypoint", "user", "workdir"]
CONFIG_NAMES: tuple[ConfigName, ...] = get_args(ConfigName)


@dataclass(frozen=True)
class ConfigField(Part):
    """A field of the image's config instead of imagegen's own value."""

    name: ConfigName
    value: tuple[t.Argument, ...]  # of user and workdir one
    because: t.Line


@dataclass(frozen=True)
class Label(Part):
    """A label of the image in addition to imagegen's labels."""

    name: t.LabelName
    value: t.Line
    because: t.Line


@dataclass(frozen=True)
class ExposedPort(Part):
    """A port on which programs of the image listen."""

    port: t.Port
    because: t.Line


@dataclass(frozen=True)
class LibraryDirectory(Part):
    """A directory of the image in which the dynamic loader finds libraries."""

    path: t.AbsolutePath
    because: t.Line


@dataclass(frozen=True)
class CopySource:
    """A file or a directory of the project that is copied into the image."""

    path: str  # in the image
    source: str  # as the matrix has it, from the project's directory
    because: str
    file: Path
    top: Path  # no link leads out of it; the project's, or the one that leading ../ name
    where: Location


@dataclass(frozen=True)
class PatchSource:
    """A unified diff of the project that is applied to the wheel of `package`."""

    package: str
    source: str  # as the matrix has it, from the project's directory
    because: str
    origin: str | None  # where the change is from
    file: Path
    top: Path  # the directory out of which no link leads
    where: Location


@dataclass(frozen=True)
class Declarations:
    """The declarations of a cell's packages, without their versions. No lock depends on them.

    All keys are distributions by their normalised names.
    """

    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # -> modules that must import
    entry_points: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # -> modules that users start
    omits: Mapping[str, str] = field(default_factory=dict)  # that an extra names and the image lacks -> why
    overrides: Mapping[str, str | None] = field(default_factory=dict)  # -> specifier; None if the image lacks it
    undeclared: tuple[str, ...] = ()  # of no component; their modules are read off the installed files
    environments: Mapping[str, Declarations] = field(default_factory=dict)  # by name, of an image with several


@dataclass(frozen=True)
class CellEnvironment:
    """One of an image's Python environments, with the content of another cell's image."""

    name: str
    because: str
    cell: Cell
    where: Location


@dataclass(frozen=True)
class Cell:
    """An image with one value on each axis, complete: everything a lock is made from."""

    id: str  # "cpu-grpo-cpu-py311"
    image: str  # "cpu-grpo"
    description: str
    purpose: str  # the use of the image, one or two sentences
    axes: Mapping[str, str]  # every axis -> value: {"cuda": "cpu", "python": "3.11", "platform": "linux/amd64"}
    base: Base
    interpreter: Interpreter
    requirements: tuple[Requirement, ...]  # sorted by component name
    sdists: tuple[Component, ...]  # every component of the matrix that declares an Sdist, wanted here or not
    indexes: Mapping[str, Index]  # by alias; always holds "pypi"
    env: tuple[EnvVar, ...]  # sorted by name
    inputs: Mapping[
        str, str
    ]  # input name ("image", "base", "rules", "component torch") -> sha256 of its canonical JSON
    record_exceptions: Mapping[str, str] = field(
        default_factory=dict
    )  # sha256 of a wheel whose RECORD is wrong -> because
    file_conflicts: tuple[FileConflictRule, ...] = ()  # all of the matrix, sorted by id; a lock has those that it needs
    gpus: tuple[Gpu, ...] = ()  # on which it runs, by capability; none without CUDA
    recipes: Mapping[str, Recipe] = field(default_factory=dict)  # by package, if a component has one
    omits: Mapping[str, str] = field(default_factory=dict)  # as in Declarations
    packages: Mapping[str, str] = field(default_factory=dict)  # Debian packages above the base -> reason, by name
    overrides: tuple[Override, ...] = ()  # sorted by package
    config: tuple[ConfigField, ...] = ()  # sorted by name
    labels: tuple[Label, ...] = ()  # sorted by name
    ports: tuple[ExposedPort, ...] = ()  # sorted by port, as text
    copies: tuple[CopySource, ...] = ()  # sorted by path
    patches: tuple[PatchSource, ...] = ()  # sorted by path, and applied in this order
    ldconfig: tuple[LibraryDirectory, ...] = ()  # sorted by path, and searched in this order
    ldconfig_places: Mapping[str, Location] = field(default_factory=dict)  # path -> its entry in the matrix
    extra_places: Mapping[str, Location] = field(default_factory=dict)  # package with extras -> its component
    override_places: Mapping[str, Location] = field(default_factory=dict)  # package -> its override in the matrix
    accepts: Mapping[str, str] = field(default_factory=dict)  # id of a rule that only warns here -> why
    flagship: bool = False  # whether its image is proposed among images that fit equally well
    extends: str | None = None  # the image whose content this one takes over, if any
    stack: StackFile | None = None  # None if the requirements are resolved, or a uv.lock of a commit has the content
    # If an image has several, the default one first, the others by name. Requirements and settings are then the
    # default environment's.
    environments: tuple[CellEnvironment, ...] = ()

    @property
    def declarations(self) -> Declarations:
        components = [requirement.component for requirement in self.requirements]
        return Declarations(
            {component.package: component.imports for component in components},
            {component.package: component.entry_points for component in components if component.entry_points},
            self.omits,
            {override.package: override.specifier for override in self.overrides},
            tuple(component.package for component in components if not component.declared),
            {environment.name: environment.cell.declarations for environment in self.environments},
        )

    @property
    def from_uv_lock(self) -> Requirement | None:
        """The requirement whose uv.lock has the content of the cell; None if the cell is resolved."""
        return next((requirement for requirement in self.requirements if requirement.uv_lock), None)

    @property
    def is_prelocked(self) -> bool:
        """Return whether another lock file has the content of the cell: then nothing is resolved."""
        return self.stack is not None or self.from_uv_lock is not None

    @property
    def python(self) -> str:
        return self.axes["python"]

    @property
    def cuda(self) -> str:
        return self.axes["cuda"]

    @property
    def cuda_version(self) -> str | None:
        """The CUDA version that its cuda axis names: "13.0" for cu130, None for cpu."""
        return cuda_version(self.cuda)

    @property
    def platform(self) -> str:
        return self.axes["platform"]
