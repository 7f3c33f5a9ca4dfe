"""The lock as data: everything that decides an image's bytes, resolved. Nothing here reads a file.

Annotations are the form that a lock file must have (tables.py). Hashes are lower-case hex sha256 without a prefix in
`sha256` fields, and OCI digests ("sha256:...") in fields that are called digest, diff_id or key. Sizes are bytes. Times
are RFC 3339 in UTC with a trailing Z.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Annotated

from imagegen.compat.rule import Override
from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.image_format import PREFIX
from imagegen.core.validation import UNWRITTEN, field_info
from imagegen.lock.foundation import LockedArchive, LockedBase, LockedDeb, LockedPackages
from imagegen.lock.interpreter import InterpreterArchive, LockedInterpreter
from imagegen.lock.tables import LockTable
from imagegen.lock.wheels import (
    BUILT,
    GIT,
    INTERPRETER,
    LINKS,
    LOCAL,
    PATCHED,
    URL,
    CopiedFile,
    LockedBuild,
    LockedCopy,
    LockedFile,
    LockedGit,
    LockedPatch,
    LockedSdist,
    LockedWheel,
    WheelPatch,
    archive_name,
)
from imagegen.spec.model import Cell, ConfigField, EnvVar, ExposedPort, FileConflictRule, Label, LibraryDirectory

LOCK_VERSION = 1


@dataclass(frozen=True)
class LockedGpus(LockTable):
    """The requirements of an image on a host's GPUs; a lock for the CPU has none."""

    capabilities: tuple[t.Capability, ...]  # compute capabilities that it is for, ascending: "9.0", "12.0"
    driver: t.DriverVersion | None = None  # the oldest NVIDIA driver that the matrix's rules allow, if they name one


@dataclass(frozen=True)
class FileConflict(LockTable):
    """A file-conflict override. At `paths`, only the files of `distribution` are installed, not the files of `over`."""

    rule: t.Word  # id in the matrix
    distribution: t.Distribution
    over: tuple[t.Distribution, ...]  # sorted, each in the lock
    paths: t.PathGlob  # over absolute paths in the image; `*` goes over slashes
    because: t.Line


@dataclass(frozen=True)
class RecordedLayer(LockTable):
    """Descriptor of one layer, in the image's order from the bottom up."""

    name: t.Word  # "base", "venv", a distribution's name, or "group-3"
    size: t.Size  # of the compressed blob
    digest: t.Digest
    diff_id: t.Digest
    key: t.Digest  # of its inputs; equal keys mean equal diff_ids


@dataclass(frozen=True)
class Record(LockTable):
    """The layers that `lock --record` built, and that `build` must build again."""

    layer_format: t.Number
    codec: t.Line  # library, version and level: "zstd 1.5.7 level 1 (zstandard 0.25.0)"
    digest: t.Digest  # of the image manifest
    layers: tuple[RecordedLayer, ...]


@dataclass(frozen=True)
class Foundation:
    """The base, the packages above it, and a standalone interpreter, which lie below a venv."""

    base: LockedBase
    interpreter: LockedInterpreter
    added: LockedPackages | None = None  # None also if the base has all requested packages


@dataclass(frozen=True)
class LockedEnvironment:
    """An environment of an image. The packages of a cell's lock are installed below `prefix`."""

    name: str  # "" if the image has only one
    because: str
    prefix: str
    lock: Lock


@dataclass(frozen=True, kw_only=True)
class Lock(LockTable):
    """A lock file; the order of the fields is the file's.

    If an image has several environments, base, interpreter, settings and packages come from the default environment,
    copied files from all environments. GPUs and driver are the ones that all environments support.
    """

    cell: t.Word
    image: t.Word
    as_of: t.Time  # nothing uploaded later took part in the resolution
    axes: Mapping[t.Word, t.AxisValue]
    inputs: Mapping[t.Line, t.Sha256]  # copied from the cell: input name -> sha256
    base: LockedBase
    interpreter: LockedInterpreter
    # Debian packages above the base; None if the cell requests none
    added: Annotated[LockedPackages | None, field_info("packages")] = None
    # The distribution's interpreter for BUILD_PLATFORM, of the same version: in a lock of another platform
    bytecode_base: LockedBase | None = None
    uv: LockedWheel  # the uv that resolved, and that a plain build of the rendered Dockerfile installs with
    env: tuple[EnvVar, ...]  # sorted by name
    config: tuple[ConfigField, ...] = ()  # sorted by name
    labels: Annotated[tuple[Label, ...], field_info("label")] = ()  # sorted by name
    ports: Annotated[tuple[ExposedPort, ...], field_info("port")] = ()  # sorted by port, as text
    copies: Annotated[tuple[LockedCopy, ...], field_info("copy")] = ()  # sorted by path
    ldconfig: tuple[LibraryDirectory, ...] = ()  # sorted by path, and searched in this order
    overrides: Annotated[tuple[Override, ...], field_info("override")] = ()  # sorted by package
    # sorted by name; `realised` turns each into a wheel
    builds: Annotated[tuple[LockedBuild, ...], field_info("build")] = ()
    wheels: Annotated[tuple[LockedWheel, ...], field_info("wheel")]  # sorted by name
    gpu: LockedGpus | None = None
    file_conflicts: Annotated[tuple[FileConflict, ...], field_info("file-conflict")] = ()  # sorted by rule
    record: Record | None = None
    several: Annotated[tuple[LockedEnvironment, ...], UNWRITTEN] = ()  # if there are several, the default one first
    # Names of environments whose row in the image's lock file differs from their lock
    moved: Annotated[tuple[str, ...], UNWRITTEN] = ()

    @property
    def has_several(self) -> bool:
        """Return whether the image has several environments."""
        return bool(self.several)

    @property
    def environments(self) -> tuple[LockedEnvironment, ...]:
        """The environments of the image, the default one first."""
        return self.several or (LockedEnvironment("", "", PREFIX, self),)

    @property
    def distinct_wheels(self) -> tuple[LockedWheel, ...]:
        """The wheels of all environments, each file once, in their order."""
        wheels = (wheel for environment in self.environments for wheel in environment.lock.wheels)
        return tuple({wheel.file.digest: wheel for wheel in wheels}.values())

    def by_cell(self, cell: Cell) -> list[tuple[Cell, Lock]]:
        """Return cell and lock of each environment, the default one first; `cell` is the image's."""
        if not self.several:
            return [(cell, self)]
        pairs = zip(cell.environments, self.several, strict=True)
        return [(environment.cell, locked.lock) for environment, locked in pairs]

    @property
    def platform(self) -> str:
        return self.axes["platform"]

    @property
    def python(self) -> str:
        return self.axes["python"]

    @property
    def foundation(self) -> Foundation:
        return Foundation(self.base, self.interpreter, self.added if self.added and self.added.debs else None)

    @property
    def debs(self) -> tuple[LockedDeb, ...]:
        """All Debian packages that the lock names, by name: an added one replaces the base's."""
        return all_debs(self.base, self.added)

    @property
    def packages(self) -> tuple[LockedWheel | LockedBuild, ...]:
        """All packages of the stack, sorted by name, each once; a compiled one as its build."""
        compiled = {build.name for build in self.builds}
        index_wheels = [wheel for wheel in self.wheels if wheel.name not in compiled]
        return tuple(sorted((*index_wheels, *self.builds), key=lambda package: package.name))

    def check(self) -> None:
        self._require_axes()
        self._require_sorted()
        self._require_copies_below_targets()
        self._require_names_of_packages()

    def _require_axes(self) -> None:
        for needed in ("platform", "python"):
            if needed not in self.axes:
                raise ValueError(f"axes lack {needed!r}")
        if self.interpreter.minor != self.python:
            raise ValueError(f"axes name another Python than the interpreter, {self.interpreter.version}")

    def _require_sorted(self) -> None:
        lists: tuple[tuple[str, list[str]], ...] = (
            ("wheels", [wheel.name for wheel in self.wheels]),
            ("builds", [build.name for build in self.builds]),
            ("env", [env.name for env in self.env]),
            ("config", [field.name for field in self.config]),
            ("label", [label.name for label in self.labels]),
            ("port", [port.port for port in self.ports]),
            ("copy", [copy.path for copy in self.copies]),
            ("ldconfig", [directory.path for directory in self.ldconfig]),
            *((f"copy.{copy.path}", [file.path for file in copy.files]) for copy in self.copies),
            ("override", [override.package for override in self.overrides]),
            ("file-conflict", [conflict.rule for conflict in self.file_conflicts]),
            ("debs", [deb.name for deb in self.base.debs]),
            ("packages.debs", [deb.name for deb in self.added.debs] if self.added else []),
            ("bytecode-base.debs", [deb.name for deb in self.bytecode_base.debs] if self.bytecode_base else []),
        )
        for kind, names in lists:
            if names != sorted(set(names)):
                out = next((b for a, b in itertools.pairwise(names) if b <= a), "")
                raise ValueError(f"{kind} are not sorted by name, each once: see {out!r}")

    def _require_copies_below_targets(self) -> None:
        for copy in self.copies:
            inside = [file.path for file in copy.files if file.path.startswith(f"{copy.path}/")]
            if not copy.files or (copy.is_directory and len(inside) < len(copy.files)):
                raise ValueError(f"copy {copy.path} has no files, or one elsewhere")

    def _require_names_of_packages(self) -> None:
        wheels, builds = {wheel.name for wheel in self.wheels}, {build.name for build in self.builds}
        if both := wheels & builds:
            raise ValueError(f"{min(both)} is a wheel and a build")
        for build in self.builds:
            if unknown := set(build.against) - wheels:
                raise ValueError(f"{build.name} is built against {min(unknown)}, of which the lock has no wheel")
        for conflict in self.file_conflicts:
            if unknown := {conflict.distribution, *conflict.over} - wheels - builds:
                raise ValueError(f"file-conflict {conflict.rule} names {min(unknown)}, which the lock has not")


def all_debs(base: LockedBase, added: LockedPackages | None) -> tuple[LockedDeb, ...]:
    """Return the debs of base and added packages, by name: an added one replaces the base's."""
    debs = {(deb.name, deb.architecture): deb for deb in (*base.debs, *(added.debs if added else ()))}
    return tuple(debs[key] for key in sorted(debs))


def file_conflicts_among(
    rules: Iterable[FileConflictRule], packages: Iterable[LockedWheel | LockedBuild]
) -> tuple[FileConflict, ...]:
    """Return the file-conflict overrides whose owner and at least one other distribution are among the packages."""
    from packaging.specifiers import SpecifierSet  # late: an existing lock has them

    versions = {package.name: package.version for package in packages}
    conflicts = []
    for rule in rules:
        over = tuple(name for name in rule.over if name in versions)
        if over and (won := versions.get(rule.owner)) and SpecifierSet(rule.versions).contains(won, prereleases=True):
            conflicts.append(FileConflict(rule.id, rule.owner, over, rule.paths, rule.because))
    return tuple(sorted(conflicts, key=lambda conflict: conflict.rule))
