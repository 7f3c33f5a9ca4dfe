"""The packages of a lock as data: files, wheels, their sources, and builds from source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from packaging.version import Version

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.git.submodule import Submodule
from imagegen.core.validation import UNWRITTEN, field_info
from imagegen.lock.tables import HashedFile, LockTable, inline
from imagegen.spec.model import GitSource

# Values of `index` that are not the alias of an index.
GIT = "git"  # the file is made of a commit
URL = "url"  # the file has an address of its own
LINKS = "find-links"  # only places that the user names have the file
INTERPRETER = "python-build-standalone"  # the file is the archive of a standalone interpreter; in no lock file
BUILT = "wheelhouse"  # a compiler makes the file
LOCAL = "local"  # the file, or the directory that it is made of, is on the user's disk
PATCHED = "patched"  # the file is another wheel with patches of the project
_SPEC = "spec.json"  # the file that describes a build, in the folder of its sources


@dataclass(frozen=True)
class LockedFile(HashedFile, LockTable):
    """One file of a package index, identified by its hash."""

    filename: Annotated[t.FileName, field_info("file")]
    # Bytes; None if the uv.lock that names the file does not state it
    size: Annotated[t.Size | None, field_info(default=None)]
    sha256: t.Sha256
    index: t.Word  # index alias
    path: t.UrlPath | None = None  # a hint, the file's path below the index's file host, without the host
    url: t.FileUrl | None = None  # of a direct download, as release assets are; then `index` is URL

    @property
    def estimate(self) -> int:
        """The size for sums and meters, 0 where it is unknown."""
        return self.size or 0

    def check(self) -> None:
        if self.size is None and self.index != URL:
            raise ValueError(f"{self.filename} has no size, which only a file with a url may lack")
        if (self.url is None) != (self.index != URL) or (self.url and self.path):
            raise ValueError(f"{self.filename} has a url, then its index is {URL!r} and it has no path; or it has none")
        address = self.url or self.path
        if address and not t.names_file(address, self.filename):
            raise ValueError(f"{address} is not the address of {self.filename}")

    def require_release(self, name: str, version: str) -> None:
        """Raise ValueError where the name of the file is not of this release."""
        if self.index in (GIT, LOCAL) and self.filename == archive_name(name, version):
            return  # the archive of a tree has a name of its own
        if parse_release(self.filename) != (name, Version(version)):
            raise ValueError(f"{self.filename} is not a file of {name} {version}")


@dataclass(frozen=True)
class LockedGit(LockTable):
    """A commit and its tree, which distinguish two sources of one version."""

    ref: t.GitRef  # its name in the matrix
    url: t.GitUrl
    commit: t.GitObject
    tree: t.GitObject
    subdirectory: t.PathBelow = ""  # of the built project in the tree; "" is its root
    exclude: tuple[t.TreeName, ...] = ()  # top-level entries of the tree that the archive leaves out

    @classmethod
    def of(cls, source: GitSource) -> LockedGit:
        return cls(source.name, source.url, source.commit, source.tree, source.subdirectory, source.exclude)


@dataclass(frozen=True)
class LockedSdist(LockTable):
    """A pure-Python source distribution that becomes a wheel in a container without network.

    Files have it in the table `sdist`, with name and version of the wheel again, or in the table `git`, without file
    name and index of the archive.
    """

    git: Annotated[LockedGit | None, field_info(".git")] = field(default=None, kw_only=True)
    file: Annotated[LockedFile, field_info(".file")]  # for a commit, the archive that imagegen packs of its tree
    build_requires: Annotated[tuple[LockedWheel, ...], field_info("build")]  # complete and exact


_inline_file = inline(required=True, file=("file", "size", "sha256", "index", "path", "url"))
_inline_commit = inline(
    required=True,
    git=("ref", "url", "commit", "tree", "subdirectory", "exclude"),
    file=("file", "size", "sha256", "index"),
)


@dataclass(frozen=True)
class CopiedFile(HashedFile, LockTable):
    """One file of the project with its contents; root owns it in the image."""

    path: t.CopiedPath  # in the image
    mode: Literal["0644", "0755"]  # the second one of a file that its owner may execute
    size: t.Size
    sha256: t.Sha256


@dataclass(frozen=True)
class LockedCopy(LockTable):
    """A file of the project that is copied to `path`, or all files of a directory below it."""

    path: t.TargetPath
    source: t.RelativePath  # from the project's directory
    because: t.Line
    files: tuple[CopiedFile, ...]  # sorted by path

    @property
    def is_directory(self) -> bool:
        return [file.path for file in self.files] != [self.path]


@dataclass(frozen=True)
class WheelPatch(HashedFile, LockTable):
    """A unified diff of the project that is applied to a wheel."""

    path: t.RelativePath  # from the project's directory
    sha256: t.Sha256
    size: t.Size
    because: t.Line
    source: t.Line | None = None

    @property
    def reason(self) -> str:
        return f"{self.because} [{self.source}]" if self.source else self.because


@dataclass(frozen=True)
class LockedWheel(LockTable):
    """One distribution of the stack.

    With `sdist`, `file` is the wheel that imagegen builds from it; with `original`, it is that file with the
    `patches`. Its sha256 and size are a promise that every build checks, and no index serves it.
    """

    name: t.Distribution
    version: t.PackageVersion
    because: t.Line | None = field(default=None, kw_only=True)  # the matrix's reason, for a requirement of the cell
    via: tuple[t.Distribution, ...] = field(default=(), kw_only=True)  # dependent packages; () if the cell requires it
    choice: t.Line | None = field(default=None, kw_only=True)  # why this file: of a component that needs a compiler
    file: Annotated[LockedFile, field_info(".file")]
    # Requires-Dist in the metadata of the project's own package
    requires: tuple[t.Line, ...] = field(default=(), kw_only=True)
    record_exception: t.Line | None = None  # why its RECORD is wrong, and accepted; None if it is right
    sdist: Annotated[LockedSdist | None, field_info("sdist", "git")] = None
    original: LockedFile | None = None  # the file that the patches are applied to
    patches: Annotated[tuple[WheelPatch, ...], field_info("patch")] = ()  # sorted by path, and applied in this order
    # Key of the source build that made it; in no lock file
    build: Annotated[str | None, UNWRITTEN] = None

    @property
    def fetched(self) -> LockedFile:
        """The file that an index serves, without patches."""
        return self.original or self.file

    @property
    def source(self) -> LockedFile:
        """The file that the wheel is made of: an sdist, the archive of a commit, or the file that an index serves."""
        return self.sdist.file if self.sdist else self.fetched

    @property
    def git(self) -> LockedGit | None:
        """The commit that it is made of."""
        return self.sdist.git if self.sdist else None

    @property
    def release(self) -> str:
        """The version; for a commit with a label of its hash, since other commits may share the version."""
        return _release(self.version, self.git)

    def finish(self, table: dict[str, Any]) -> dict[str, Any]:
        if self.sdist is None:
            return table
        source = table.pop("sdist")
        if self.sdist.git is None:
            return table | {"sdist": {"name": self.name, "version": self.version} | source}
        return table | {"git": {key: value for key, value in source.items() if key not in ("file", "index")}}

    @staticmethod
    def nest(table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        release = {"name": table.get("name"), "version": table.get("version")}
        sources = {}
        if isinstance(git := table.get("git"), dict):
            archive = {"file": archive_name(str(release["name"]), str(release["version"])), "index": GIT}
            if implied := archive.keys() & git.keys():
                raise ValueError(f"unknown key {min(implied)!r} of its git")
            sources["git"] = _inline_commit(archive | git)
        if isinstance(sdist := table.get("sdist"), dict):
            sources["sdist"] = _inline_file({k: v for k, v in sdist.items() if (k, v) not in release.items()})
        return _inline_file(table | sources)

    def check(self) -> None:
        file, source = self.file, self.sdist
        file.require_release(self.name, self.version)
        if not file.filename.endswith(".whl"):
            raise ValueError(f"{file.filename} is not a wheel")
        if (file.index == GIT) != bool(source and source.git):
            raise ValueError(f"{file.filename} is made of a commit, then its index is {GIT}; or it is not")
        if source:
            source.file.require_release(self.name, self.version)
            if not (source.git or source.file.index == LOCAL or source.file.filename.endswith(".tar.gz")):
                raise ValueError(f"{source.file.filename} is not a source distribution (PEP 625)")
            if (file.index == LOCAL) != (source.file.index == LOCAL):
                raise ValueError(f"{file.filename} and its source are not of the same place")
        if len({file.index == PATCHED, self.original is not None, bool(self.patches)}) > 1:
            raise ValueError(
                f"{file.filename} has patches and an original, then its index is {PATCHED}; or it has none"
            )
        if source and self.patches:
            raise ValueError(f"{file.filename} is made of sources, and patched")
        if file.index == BUILT:
            raise ValueError(f"{file.filename} cannot be of {file.index}, since a lock has a compiled wheel as a build")
        if self.choice is None and self.fetched.index in (URL, LINKS):
            raise ValueError(f"{file.filename} is of no index, and no choice says why")


@dataclass(frozen=True)
class LockedPatch(HashedFile, LockTable):
    """A patch by its file name below wheels/ and its hash."""

    filename: t.PathBelow
    sha256: t.Sha256


@dataclass(frozen=True, kw_only=True)
class LockedBuild(LockTable):
    """A component that is compiled for this image, since no wheel fits, with all inputs of the wheel."""

    name: t.Distribution
    version: t.PackageVersion
    because: t.Line | None = None  # the matrix's reason
    via: tuple[t.Distribution, ...] = ()  # dependent packages
    choice: t.Line  # why it is compiled
    key: t.Digest  # of all that decides the wheel
    source: Annotated[LockedFile, field_info(".source")]  # an sdist, or the archive that imagegen packs of a tree
    architectures: tuple[t.Capability, ...] = ()  # ascending
    modules: tuple[t.Module, ...] = ()  # extension modules that the wheel must hold
    requires: tuple[t.RequirementText, ...] = ()  # requirements of the resolution; the wheel may have no others
    against: tuple[t.Distribution, ...] = ()  # wheels of this lock that the build reads, complete, sorted
    env: Mapping[t.BuildEnvName, t.Line] = field(default_factory=dict)  # the architectures among them; not the jobs
    git: LockedGit | None = None
    submodules: tuple[Submodule, ...] = ()
    patches: tuple[LockedPatch, ...] = ()
    build_requires: tuple[LockedWheel, ...] = ()  # complete and exact; no part of the image

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def release(self) -> str:
        """Return the release, as LockedWheel.release."""
        return _release(self.version, self.git)

    nest = staticmethod(inline(required=True, source=("file", "size", "sha256", "index", "path", "url")))

    def check(self) -> None:
        source, git = self.source, self.git
        source.require_release(self.name, self.version)
        if source.index in (BUILT, LINKS, URL) or source.filename.endswith(".whl"):
            raise ValueError(f"{source.filename} of {source.index} is not a source that a build can begin with")
        if (
            (git is None) != (source.index != GIT)
            or (self.submodules and not git)
            or (git and (git.subdirectory or git.exclude))
        ):
            raise ValueError(
                f"{source.filename} is of a commit, then its index is {GIT}; or it has no commit and no submodules"
            )
        for label, names in (
            ("against", self.against),
            ("submodules", [submodule.path for submodule in self.submodules]),
            ("build-requires", [require.name for require in self.build_requires]),
        ):
            if list(names) != sorted(set(names)):
                raise ValueError(f"its {label} are not sorted, each once")
        beside = [_SPEC, source.filename, *(require.file.filename for require in self.build_requires)]
        for name in [patch.filename for patch in self.patches]:
            if name in beside or "/" in name:
                raise ValueError(f"its patch {name} has no file name of its own in the folder of the build")
            beside.append(name)


def archive_name(name: str, version: str) -> str:
    """Return the file name of the archive that is packed of a commit."""
    return f"{name}-{version}.tar"


def parse_release(filename: str) -> tuple[str, Version]:
    """Return name and version in the file name of a wheel or an sdist. Raises ValueError."""
    from packaging.utils import parse_sdist_filename, parse_wheel_filename

    return parse_wheel_filename(filename)[:2] if filename.endswith(".whl") else parse_sdist_filename(filename)


def _release(version: str, commit: LockedGit | None) -> str:
    if commit is None:
        return version
    label = "." if "+" in version else "+"  # a version has one local label (PEP 440)
    return f"{version}{label}git.{re.sub(r'[^a-z0-9]+', '.', commit.ref.lower())}"
