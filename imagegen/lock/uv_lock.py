"""A project's own uv.lock. Selects its packages for one machine without asking an index, as the content of a cell.

Sources: uv's documentation of the lockfile ("The lockfile format is not stable across major `version`s; `revision`s add
keys that older readers ignore"), and uv 0.13.8's crates/uv-resolver/src/lock. Markers are PEP 508's. Members: uv's
documentation of workspaces; the submodules in which they may lie: gitmodules(5).
"""

from __future__ import annotations

import configparser
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qs, unquote, urljoin, urlsplit

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagegen.compat import metadata
from imagegen.core import git, toml
from imagegen.core import types as t
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, Location, LockError
from imagegen.core.net import package_index
from imagegen.core.net.package_index import upload_day
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.model import GIT, URL
from imagegen.lock.recipes import Compiled, member, pyproject, require_metadata
from imagegen.lock.resolution_inputs import Attempts
from imagegen.lock.uv_resolve import Pinned, Remote
from imagegen.spec.model import Cell, GitSource, Sdist

VERSION = 1  # of the format
_KINDS = ("registry", "git", "url", "path", "directory", "editable", "virtual")
# uv's spelling of a chosen extra or group, if a project declares that some of them conflict.
_CHOICE = re.compile(r"extra (==|!=) '([^']*)'")
_TRUE, _FALSE = "os_name == 'posix'", "os_name != 'posix'"


class _Table(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=lambda name: name.replace("_", "-"))


class UvSource(_Table):
    """The source of a distribution; exactly one of its keys but `subdirectory` is set."""

    registry: str | None = None  # address of an index
    git: str | None = None  # address?subdirectory=...&rev=...#commit
    url: str | None = None
    path: str | None = None  # of a file, relative to the project
    directory: str | None = None
    editable: str | None = None
    virtual: str | None = None  # a project that is not installed itself
    subdirectory: str | None = None

    @property
    def member(self) -> str | None:
        """The directory of a distribution that lies in the project itself, relative to it: "." is the project."""
        return self.editable or self.directory

    @property
    def commit(self) -> GitCommit | None:
        """The commit that `git` names. Raises ValueError for an address that names none."""
        if self.git is None:
            return None
        address = urlsplit(self.git)
        if not re.fullmatch(r"[0-9a-f]{40}", address.fragment):
            raise ValueError(f"{self.git!r} names no commit")
        folder = parse_qs(address.query).get("subdirectory", [""])[0]
        return GitCommit(address._replace(query="", fragment="").geturl(), address.fragment, folder.strip("/"))


@dataclass(frozen=True)
class GitCommit:
    """A commit (40 hex digits) of the repository at `url`, and the folder below which the distribution lies."""

    url: str
    commit: str
    subdirectory: str = ""


class Dependency(_Table):
    """An edge of the resolution. `version` and `source` are there where the file has several packages of the name."""

    name: str
    version: str | None = None
    source: UvSource | None = None
    extra: tuple[str, ...] = ()
    marker: str | None = None


class DistributionFile(_Table):
    """A wheel or an sdist."""

    url: str | None = None
    path: str | None = None
    filename: str | None = None
    hash: str | None = None  # "sha256:..."
    size: int | None = Field(default=None, ge=0)  # bytes; uv knows it of indexes that give it
    upload_time: str | None = None  # RFC 3339

    @property
    def uploaded(self) -> str | None:
        """The day of the upload, "2026-07-03", if the file states it."""
        day = upload_day(self.upload_time or "")
        return str(day) if day else None

    @property
    def name(self) -> str:
        """The file name."""
        return self.filename or unquote(urlsplit(self.url or self.path or "").path.rpartition("/")[2])


class UvPackage(_Table):
    """One distribution of the file, with its files and edges."""

    name: t.Distribution
    version: t.PackageVersion | None = None  # None: only the build backend of a member knows it
    source: UvSource
    resolution_markers: tuple[str, ...] = ()  # of the forks that it belongs to; none: of all
    dependencies: tuple[Dependency, ...] = ()
    optional_dependencies: Mapping[str, tuple[Dependency, ...]] = {}
    dev_dependencies: Mapping[str, tuple[Dependency, ...]] = {}
    sdist: DistributionFile | None = None
    wheels: tuple[DistributionFile, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


class UvOverride(_Table):
    """A requirement that replaces all others of a package (`override-dependencies` of pyproject.toml)."""

    name: str
    specifier: str | None = None
    marker: str | None = None


class UvManifest(_Table):
    """The inputs of the resolution that no package of the file holds."""

    overrides: tuple[UvOverride, ...] = ()


class UvLock(_Table):
    """The whole file."""

    version: int
    requires_python: str
    supported_markers: tuple[str, ...] = ()
    package: tuple[UvPackage, ...] = ()
    manifest: UvManifest = UvManifest()


@dataclass(frozen=True)
class Root:
    """A distribution that is requested, with its extras and, for a member, its dependency groups."""

    name: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selected:
    """A package of the selection. `via` names the distributions whose requirements brought it, sorted."""

    package: UvPackage
    via: tuple[str, ...]


def parse(text: str, where: str) -> UvLock:
    """Return the file's contents; `where` names it in errors. Raises LockError."""
    try:
        table = toml.loads(text)
        if (version := table.get("version")) != VERSION or isinstance(version, bool):
            message = f"format {version!r} of uv.lock is unknown"
            raise LockError(
                message,
                code="lock-uv-lock-malformed",
                where=where,
                why=f"this imagegen reads format {VERSION}",
                fix="`uv lock` of uv 0.13",
            )
        parsed = UvLock.model_validate(table)
        SpecifierSet(parsed.requires_python)
        for package in parsed.package:
            _require_valid(package)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise LockError(
            "uv.lock is malformed", code="lock-uv-lock-malformed", where=where, why=f"{path}: {first['msg']}"
        ) from error
    except ValueError as error:  # also of TOML, and of packaging
        line = Location(where, error.line) if isinstance(error, toml.TomlError) else where
        raise LockError("uv.lock is malformed", code="lock-uv-lock-malformed", where=line, why=str(error)) from error
    return parsed


def select(lock: UvLock, roots: Sequence[Root], python: str, machine: str, where: str) -> tuple[Selected, ...]:
    """Return the packages that the file installs for `roots` on CPython `python` ("3.12.6") on Linux, by name.

    `machine` is platform_machine: "x86_64". Raises LockError if the file is not for that interpreter or machine,
    lacks a root, an extra or a group, or gives two packages of one name.
    """
    return _Selection(lock, python, machine, where, _choices(roots)).run(roots)


def _require_valid(package: UvPackage) -> None:
    """Raise ValueError for a package whose source is none of uv's kinds."""
    kinds = [kind for kind in _KINDS if getattr(package.source, kind) is not None]
    if len(kinds) != 1:
        raise ValueError(f"{package}: its source names {' and '.join(kinds) or 'no place'}")
    _ = package.source.commit


def _choices(roots: Iterable[Root]) -> frozenset[str]:
    """The extras and groups of `roots`, as uv spells them in markers."""
    extras = (f"extra-{len(root.name)}-{root.name}-{extra}" for root in roots for extra in root.extras)
    groups = (f"group-{len(root.name)}-{root.name}-{group}" for root in roots for group in root.groups)
    return frozenset((*extras, *groups))


@dataclass(frozen=True)
class _Selection:
    lock: UvLock
    python: str
    machine: str
    where: str
    choices: frozenset[str]

    def run(self, roots: Sequence[Root]) -> tuple[Selected, ...]:
        self._require_target()
        selected: dict[str, UvPackage] = {}
        extras: dict[str, set[str]] = defaultdict(set)  # package -> those whose dependencies are in; "" is none
        via: dict[str, set[str]] = defaultdict(set)
        todo = [(self._root(entry), "") for entry in roots]
        todo += [(dependency, root.name) for root in roots for dependency in self._grouped(root)]
        while todo:
            required, asking = todo.pop()
            package = self._resolve(required)
            if selected.setdefault(package.name, package) != package:
                raise self._error(f"it installs both {selected[package.name]} and {package}")
            via[package.name] |= {asking} - {""}
            for extra in {"", *required.extra} - extras[package.name]:
                extras[package.name].add(extra)
                edges = package.optional_dependencies.get(extra, ()) if extra else package.dependencies
                todo += [(edge, package.name) for edge in edges if self._holds(edge.marker)]
        return tuple(
            Selected(selected[name], tuple(sorted(via[name] - {name})))
            for name in sorted(selected)
            if selected[name].source.virtual is None
        )

    @cached_property
    def _packages(self) -> dict[str, list[UvPackage]]:
        packages: dict[str, list[UvPackage]] = {}
        for package in self.lock.package:
            packages.setdefault(package.name, []).append(package)
        return packages

    def _require_target(self) -> None:
        try:
            fits = SpecifierSet(self.lock.requires_python).contains(self.python, prereleases=True)
        except ValueError:
            fits = False
        if not fits:
            raise self._error(f"it is for Python {self.lock.requires_python}, and the cell has {self.python}")
        if self.lock.supported_markers and not any(map(self._holds, self.lock.supported_markers)):
            raise self._error(f"it is not for Linux on {self.machine}")

    def _root(self, root: Root) -> Dependency:
        """`root` as an edge. Raises LockError for an extra that the distribution does not declare."""
        package = self._resolve(Dependency(name=root.name))
        if unknown := sorted(set(root.extras) - package.optional_dependencies.keys()):
            declared = ", ".join(sorted(package.optional_dependencies)) or "none"
            raise self._error(f"{root.name} has no extra {', '.join(unknown)}; it declares {declared}")
        return Dependency(name=root.name, extra=root.extras)

    def _grouped(self, root: Root) -> Iterator[Dependency]:
        package = self._resolve(Dependency(name=root.name))
        for group in root.groups:
            if group not in package.dev_dependencies:
                declared = ", ".join(sorted(package.dev_dependencies)) or "none"
                raise self._error(f"{root.name} has no dependency group {group}; it declares {declared}")
            yield from (
                dev_dependency
                for dev_dependency in package.dev_dependencies[group]
                if self._holds(dev_dependency.marker)
            )

    def _resolve(self, required: Dependency) -> UvPackage:
        packages = self._packages.get(required.name, [])
        fitting = [
            package
            for package in packages
            if required.version in (None, package.version)
            and required.source in (None, package.source)
            and (not package.resolution_markers or any(map(self._holds, package.resolution_markers)))
        ]
        if len(fitting) != 1:
            wrong = " and ".join(map(str, fitting)) or ("none for this machine" if packages else "none")
            raise self._error(f"of {required.name} it has {wrong}")
        return fitting[0]

    def _holds(self, marker: str | None) -> bool:
        if marker is None:
            return True

        def replace(match: re.Match[str]) -> str:
            return _TRUE if (match[2] in self.choices) == (match[1] == "==") else _FALSE

        try:
            holds = metadata.holds(_CHOICE.sub(replace, marker), self.python, self.machine, "")
        except (ValueError, RecursionError):  # packaging's InvalidMarker is a ValueError
            holds = None
        if holds is None:
            raise self._error(f"the marker {marker!r} cannot be evaluated")
        return holds

    def _error(self, why: str) -> LockError:
        fix = "correct `extras`, `groups` or the components of the image; or `uv lock` the project again"
        return mismatch(why, self.where, fix)


def mismatch(why: str, where: str, fix: str) -> LockError:
    """Return the error for a uv.lock at `where` that does not satisfy the cell."""
    return LockError("uv.lock does not answer this cell", code="lock-uv-lock-mismatch", where=where, why=why, fix=fix)


def sha256_of(file: DistributionFile, package: UvPackage, where: Location | str) -> str:
    """Return the file's sha256 as hex digits. Raises LockError where uv.lock names another hash, or none."""
    algorithm, _, digest = (file.hash or "").partition(":")
    if algorithm != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest):
        why = f"{package} cannot be locked without"
        raise LockError(f"uv.lock names no sha256 of {file.name}", code="lock-no-hash", where=where, why=why)
    return digest


def build_requires(pyproject: Mapping[str, Any]) -> tuple[str, ...]:
    """The requirements of a project's build backend (PEP 518), setuptools' where it names none."""
    system = pyproject.get("build-system", {})
    return tuple(system.get("requires", ["setuptools"]))


_SCP = re.compile(r"(?:ssh://)?git@([A-Za-z0-9.-]+)[:/](.+)")  # git-clone(1): an address that only a key opens


@dataclass(frozen=True)
class ProjectContents:
    """The contents of the cell. `commits` and `archives` by package; `routes` as in ResolveRequest."""

    found: tuple[Pinned, ...]  # sorted by name; without members whose commit could not be had
    routes: Mapping[str, str]
    commits: Mapping[str, GitSource]
    archives: Mapping[str, git.PackedTree]
    choice: str  # the file that names all others, in words
    sdists: Mapping[str, Sdist] = field(default_factory=dict)  # by package, of those that no component declares


class UvProject:
    """The uv.lock of the commit that `cell.from_uv_lock` names; no index is asked.

    Raises FetchError for a commit of the project that cannot be had.
    """

    def __init__(
        self,
        cell: Cell,
        target: WheelTarget,
        compiled: Mapping[str, Compiled],
        attempts: Attempts,
        context: Context,
    ) -> None:
        requested = cell.from_uv_lock
        assert requested and requested.git and requested.uv_lock  # noqa: S101 - the matrix has `uv_lock` only with `git`
        self.requested, self.source, self.path = requested, requested.git, requested.uv_lock
        self.cell, self.target, self.compiled, self.attempts = cell, target, compiled, attempts
        self.store, self.settings, self.progress = context.store, context.settings, context.progress
        self.requirements = {requirement.component.package: requirement for requirement in cell.requirements}
        self.folder = f"{requested.component.package}-{self.source.metadata.version}"
        tree = git.TreeSource(self.source.url, self.source.commit, self.source.tree, exclude=self.source.exclude)
        self.archive = git.archive(tree, self.folder, context)
        require_metadata(requested, self.archive, context.store)
        self.where = f"{self.path} of {self.source.url} at {self.source.commit[:12]}"

    def contents(self) -> ProjectContents:
        """Return the packages of the file for the cell's Python and machine.

        Commits of members that cannot be had are recorded in `attempts`. Raises LockError for a file that does not
        answer the cell.
        """
        parsed = parse(self._text(self.path), self.where)
        project = self.requested.component.package
        roots = [Root(project, self.requested.extras, self.requested.groups)]
        roots += [
            Root(name, requirement.extras) for name, requirement in sorted(self.requirements.items()) if name != project
        ]
        selected = select(parsed, roots, self.target.python, self.target.machine, self.where)
        pins = [self._pinned(selected_package) for selected_package in selected]
        sources = {selected_package.package.name: selected_package.package for selected_package in selected}
        commits, archives = self._commits({pin.name: (pin.version, sources[pin.name]) for pin in pins})
        lacking = {name for name, package in sources.items() if self._commit_of(package)} - commits.keys()
        return ProjectContents(
            found=tuple(pin for pin in pins if pin.name not in lacking),
            routes={
                name: route(uv_package.source.registry, self._commit_of(uv_package))
                for name, uv_package in sources.items()
            },
            commits=commits,
            archives=archives,
            choice=self.where,
        )

    def _text(self, path: str) -> str:
        """A file of the project's tree."""
        try:
            return member(self.store, self.archive, f"{self.folder}/{path}").decode()
        except (KeyError, UnicodeDecodeError) as error:
            message = f"{self.source.url} at {self.source.commit} has no {path} that can be read"
            raise LockError(message, why=str(error), fix="correct `uv_lock`: a path in the commit's tree") from error

    def _pinned(self, selected: Selected) -> Pinned:
        package = selected.package
        version = package.version or self._declared_version(package)
        requirement = self.requirements.get(package.name)
        if requirement and not SpecifierSet(requirement.specifier).contains(version, prereleases=True):
            raise self._error(f"it has {package.name} {version}, and the matrix asks for {requirement.specifier}")
        compiled = self.compiled.get(package.name)
        if compiled and Version(compiled.version) != Version(version):
            raise self._error(f"it has {package.name} {version}, which no recipe compiles")
        if package.source.path or (not self._commit_of(package) and not package.wheels and not package.sdist):
            raise self._error(f"it names no file of {package} that has an address")
        return Pinned(
            package.name,
            version,
            selected.via,
            tuple(self._remote(file, package) for file in package.wheels),
            self._remote(package.sdist, package) if package.sdist else None,
        )

    def _declared_version(self, package: UvPackage) -> str:
        """Return the version of a member with a dynamic version, which the matrix declares as an exact specifier."""
        requirement = self.requirements.get(package.name)
        exact = [specifier.version for specifier in SpecifierSet(requirement.specifier)] if requirement else []
        if len(exact) != 1 or not str(requirement and requirement.specifier).startswith("=="):
            fix = f'declare the component {package.name} with its version: `version: "==1.2.3"`'
            why = f"{package.name} derives its version from git's tags, which no commit holds"
            raise LockError(
                f"{self.where} gives no version of {package.name}", code="lock-uv-lock-mismatch", why=why, fix=fix
            )
        return exact[0]

    def _remote(self, file: DistributionFile, package: UvPackage) -> Remote:
        if file.url is None:
            raise self._error(f"{file.name} of {package} has no address")
        return Remote(file.name, file.url, sha256_of(file, package, self.where), file.size, file.uploaded)

    def _commit_of(self, package: UvPackage) -> GitCommit | None:
        """The commit that the package is built of; None for one of files."""
        if (directory := package.source.member) is None:
            return package.source.commit
        path = posixpath.normpath(directory)
        if path.startswith("../"):
            raise self._error(f"{package} lies at {directory}, outside the commit")
        for folder, commit in self.archive.commits.items():
            if path == folder or path.startswith(f"{folder}/"):
                return GitCommit(self._submodules()[folder], commit, path[len(folder) + 1 :])
        return GitCommit(self.source.url, self.source.commit, "" if path == "." else path)

    def _submodules(self) -> dict[str, str]:
        """Return path -> address of each submodule; an address that only a key opens becomes an https address."""
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read_string("\n".join(line.strip() for line in self._text(".gitmodules").splitlines()))
            urls = {parser[name]["path"]: parser[name]["url"] for name in parser.sections()}
        except (configparser.Error, KeyError) as error:
            raise LockError(
                ".gitmodules is malformed", code="lock-gitmodules-malformed", where=self.where, why=str(error)
            ) from error
        return {path: self._address(url) for path, url in urls.items()}

    def _address(self, url: str) -> str:
        if match := _SCP.fullmatch(url):
            return f"https://{match[1]}/{match[2]}"
        return urljoin(f"{self.source.url}/", url) if url.startswith(("./", "../")) else url

    def _commits(
        self, packages: Mapping[str, tuple[str, UvPackage]]
    ) -> tuple[dict[str, GitSource], dict[str, git.PackedTree]]:
        commits, archives = {}, {}
        for name, (version, package) in packages.items():
            if commit := self._commit_of(package):
                packed = self.attempts.attempt(partial(self._source, name, version, commit))
                if packed:
                    commits[name], archives[name] = packed
        return commits, archives

    def _source(self, name: str, version: str, commit: GitCommit) -> tuple[GitSource, git.PackedTree]:
        """Return a member's commit and its archive, with the build requirements. Raises FetchError, LockError."""
        if name == self.requested.component.package:
            return self.source, self.archive
        is_own = commit.commit == self.source.commit
        tree, exclude = (self.source.tree, self.source.exclude) if is_own else (None, ())
        return commit_source(name, version, commit, tree, Context(self.store, self.settings, self.progress), exclude)

    def _error(self, why: str) -> LockError:
        return mismatch(why, self.where, "correct the image's components, or name another commit")


def route(registry: str | None, commit: GitCommit | None) -> str:
    """Return the index alias of a package's files: GIT for a commit, URL for those with an address of their own."""
    import pypi_simple  # late, since it imports an HTML parser, which an unchanged build never needs

    if commit:
        return GIT
    return package_index.DEFAULT if f"{(registry or '').rstrip('/')}/" == pypi_simple.PYPI_SIMPLE_ENDPOINT else URL


def commit_source(
    name: str, version: str, commit: GitCommit, tree: str | None, context: Context, exclude: tuple[str, ...] = ()
) -> tuple[GitSource, git.PackedTree]:
    """Return a package's commit with the requirements of its build backend, and its archive; `tree` if it is known.

    `exclude` as in git.TreeSource.

    Raises FetchError, LockError.
    """
    folder = f"{name}-{version}"
    try:
        archive = git.archive(git.TreeSource(commit.url, commit.commit, tree, exclude=exclude), folder, context)
    except FetchError as error:
        raise type(error)(f"{name} of the lock file: {error.what}", why=error.why, fix=error.fix) from error
    project = pyproject(context.store, archive, folder, commit.subdirectory)
    metadata = Sdist(version, (), build_requires(project))
    source = GitSource(
        commit.commit[:12], commit.url, commit.commit, archive.tree, metadata, commit.subdirectory, exclude
    )
    return source, archive
