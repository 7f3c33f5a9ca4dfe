"""The lock as data: everything that decides an image's bytes, resolved. Nothing here reads a file.

Hashes are lower-case hex sha256 without a prefix in `sha256` fields, and OCI digests ("sha256:...") in fields that
are called digest, diff_id or key. Sizes are bytes. Times are RFC 3339 in UTC with a trailing Z.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from imagegen.plan.lock.base import Deb, LockedBase, LockedPackages
from imagegen.plan.lock.interpreter import InterpreterArchive, LockedInterpreter
from imagegen.plan.matrix.model import GitSource
from imagegen.plan.matrix.rule import WinnerRule

__all__ = [
    "BUILT",
    "GIT",
    "LINKS",
    "LOCAL",
    "LOCK_VERSION",
    "URL",
    "Deb",
    "File",
    "Foundation",
    "InterpreterArchive",
    "Lock",
    "LockedBase",
    "LockedBuild",
    "LockedEnv",
    "LockedGit",
    "LockedGpus",
    "LockedInterpreter",
    "LockedPackages",
    "LockedPatch",
    "LockedSdist",
    "LockedSubmodule",
    "LockedWheel",
    "Record",
    "RecordedLayer",
    "Winner",
    "archive_name",
    "winners_among",
]

LOCK_VERSION = 1
GIT = "git"  # in place of an index's alias: the file is made of a commit
URL = "url"  # in place of an index's alias: the file has an address of its own
LINKS = "find-links"  # in place of an index's alias: only places that the user names have the file
BUILT = "wheelhouse"  # in place of an index's alias: a compiler makes the file
LOCAL = "local"  # in place of an index's alias: the file, or the directory that it is packed of, is on somebody's disk


@dataclass(frozen=True)
class File:
    """One file of a package index, known by its hash."""

    filename: str
    sha256: str
    size: int | None  # bytes; None: the uv.lock that names the file does not say
    index: str  # index alias
    path: str | None = None  # hint: the file's path below the index's file host, without the host
    url: str | None = None  # of a direct download, as release assets are; then `index` is URL

    @property
    def digest(self) -> str:
        """Of the file as a blob of the store."""
        return f"sha256:{self.sha256}"

    @property
    def estimate(self) -> int:
        """Its size for sums and meters, 0 where it is unknown."""
        return self.size or 0


@dataclass(frozen=True)
class LockedGit:
    """A commit and its tree, 40 hex digits each: what tells two sources of one version apart."""

    ref: str  # how the matrix calls it
    url: str
    commit: str
    tree: str
    subdirectory: str = ""  # of the tree: the project that is built; "" is its root

    @classmethod
    def of(cls, source: GitSource) -> LockedGit:
        return cls(source.name, source.url, source.commit, source.tree, source.subdirectory)


@dataclass(frozen=True)
class LockedSdist:
    """A pure-Python source distribution that becomes a wheel in a container without network."""

    file: File  # of a commit: the archive that imagegen packs of its tree, which no index serves
    build_requires: tuple[LockedWheel, ...]  # wheels that the build backend needs, complete and exact
    git: LockedGit | None = None


@dataclass(frozen=True)
class LockedWheel:
    """One distribution of the stack.

    With `sdist`, `file` is the wheel that imagegen builds from it: its sha256 and size are a promise that every
    build checks, and no index serves it.
    """

    name: str  # normalised (PEP 503)
    version: str
    file: File
    via: tuple[str, ...]  # who asks for it: names of distributions; empty for a requirement of the cell itself
    because: str | None = None  # the matrix's reason, for a requirement of the cell
    sdist: LockedSdist | None = None
    misrecorded: str | None = None  # why its RECORD is not believed; None: it is, as it should be
    choice: str | None = None  # of a component that needs a compiler: why this file, and not another
    build: str | None = None  # key of the source build that made it; such a wheel stands in no lock file

    @property
    def release(self) -> str:
        """Its version; of a commit with a label that says so, since others may share the version."""
        return _release(self.version, self.sdist.git if self.sdist else None)


@dataclass(frozen=True)
class LockedPatch:
    """A patch by its file name below wheels/ and its hash."""

    filename: str
    sha256: str


@dataclass(frozen=True)
class LockedSubmodule:
    """What must be at `path` of a commit's tree."""

    path: str
    url: str
    commit: str
    tree: str


@dataclass(frozen=True)
class LockedBuild:
    """A component that is compiled for this image, since no wheel fits: all that decides the wheel."""

    name: str  # normalised (PEP 503)
    version: str
    because: str | None  # the matrix's reason
    via: tuple[str, ...]  # who asks for it besides
    choice: str  # why it is compiled
    source: File  # an sdist of an index; of a commit or a directory: the archive that imagegen packs
    git: LockedGit | None
    submodules: tuple[LockedSubmodule, ...]
    patches: tuple[LockedPatch, ...]
    requires: tuple[str, ...]  # PEP 508, what the resolution counted on; the wheel may ask for nothing else
    build_requires: tuple[LockedWheel, ...]  # complete and exact; no part of the image
    against: tuple[str, ...]  # wheels of this lock that are in place while it is built, complete, sorted
    env: Mapping[str, str]  # the build's own variables, the architectures among them; not its jobs
    architectures: tuple[str, ...]  # compute capabilities, ascending
    modules: tuple[str, ...]  # extension modules that the wheel must hold
    key: str  # "sha256:...", of all that decides the wheel

    @property
    def release(self) -> str:
        """As LockedWheel's."""
        return _release(self.version, self.git)


def _release(version: str, commit: LockedGit | None) -> str:
    if commit is None:
        return version
    label = "." if "+" in version else "+"  # a version has one local label (PEP 440)
    return f"{version}{label}git.{re.sub(r'[^a-z0-9]+', '.', commit.ref.lower())}"


@dataclass(frozen=True)
class LockedEnv:
    name: str
    value: str
    because: str


@dataclass(frozen=True)
class LockedGpus:
    """What the image asks of a host's GPUs; a lock for the CPU has none."""

    capabilities: tuple[str, ...]  # compute capabilities that it is for, ascending: "9.0", "12.0"
    driver: str | None  # the oldest NVIDIA driver that the matrix's rules allow: "580.65.06"; None: they name none


@dataclass(frozen=True)
class Winner:
    """Of the files at `paths`, `distribution`'s are installed; those in `over` leave theirs out."""

    rule: str  # id in the matrix
    distribution: str
    over: tuple[str, ...]  # sorted, each in the lock
    paths: str  # glob over absolute paths in the image; `*` goes over slashes
    because: str


@dataclass(frozen=True)
class RecordedLayer:
    """Descriptor of one layer, in the image's order from the bottom up."""

    name: str  # "base", "venv", a distribution's name, or "group-3"
    key: str  # of its inputs; equal keys mean equal diff_ids
    diff_id: str
    digest: str
    size: int  # of the compressed blob


@dataclass(frozen=True)
class Record:
    """What `lock --record` built: the promise that `build` holds itself to."""

    layer_format: int
    codec: str  # library, version and level: "zstd 1.5.7 level 1 (zstandard 0.25.0)"
    layers: tuple[RecordedLayer, ...]
    digest: str  # of the image manifest


@dataclass(frozen=True)
class Foundation:
    """What lies under a venv, from the bottom up: the base, packages above it, and a standalone interpreter."""

    base: LockedBase
    interpreter: LockedInterpreter
    added: LockedPackages | None = None  # None also where the base has all that is requested


@dataclass(frozen=True)
class Lock:
    cell: str
    image: str
    axes: Mapping[str, str]
    inputs: Mapping[str, str]  # copied from the cell: input name -> sha256
    uv: LockedWheel  # what resolved, and what a plain build of the rendered Dockerfile installs with
    as_of: str  # nothing uploaded later took part in the resolution
    base: LockedBase
    interpreter: LockedInterpreter
    wheels: tuple[LockedWheel, ...]  # sorted by name
    env: tuple[LockedEnv, ...]  # sorted by name
    record: Record | None = None
    winners: tuple[Winner, ...] = ()  # sorted by rule
    gpu: LockedGpus | None = None
    builds: tuple[LockedBuild, ...] = ()  # sorted by name; `realised` turns each into a wheel
    added: LockedPackages | None = None  # Debian packages above the base; None: the cell requests none

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
    def debs(self) -> tuple[Deb, ...]:
        """All Debian packages that the lock names, by name: an added one replaces the base's."""
        return all_debs(self.base, self.added)

    @property
    def packages(self) -> tuple[LockedWheel | LockedBuild, ...]:
        """All that the stack holds, sorted by name, each once: what is compiled as a build, realised or not."""
        compiled = {build.name for build in self.builds}
        others = [wheel for wheel in self.wheels if wheel.name not in compiled]
        return tuple(sorted((*others, *self.builds), key=lambda each: each.name))


def all_debs(base: LockedBase, added: LockedPackages | None) -> tuple[Deb, ...]:
    """Return the debs of base and added packages, by name: an added one replaces the base's."""
    found = {(deb.name, deb.architecture): deb for deb in (*base.debs, *(added.debs if added else ()))}
    return tuple(found[key] for key in sorted(found))


def archive_name(name: str, version: str) -> str:
    """The file name of the archive that is packed of a commit."""
    return f"{name}-{version}.tar"


def winners_among(rules: Iterable[WinnerRule], packages: Iterable[LockedWheel | LockedBuild]) -> tuple[Winner, ...]:
    """What the matrix's winners mean for these packages: those whose winner and at least one loser are there."""
    versions = {each.name: each.version for each in packages}
    found = []
    for rule in rules:
        over = tuple(name for name in rule.over if name in versions)
        if over and (won := versions.get(rule.winner)) and SpecifierSet(rule.versions).contains(won, prereleases=True):
            found.append(Winner(rule.id, rule.winner, over, rule.paths, rule.because))
    return tuple(sorted(found, key=lambda each: each.rule))
