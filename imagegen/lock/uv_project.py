"""The uv.lock of a commit as the content of a cell.

Members: uv's documentation of workspaces; the submodules in which they may lie: gitmodules(5).
"""

from __future__ import annotations

import configparser
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urljoin

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.core import git
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, LockError
from imagegen.core.net import package_index
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.components import Compiled
from imagegen.lock.model import GIT, URL
from imagegen.lock.recipes import member, pyproject, require_metadata
from imagegen.lock.resolution_inputs import Attempts
from imagegen.lock.uv_resolve import Pinned, Remote
from imagegen.projects.uv_lock import (
    DistributionFile,
    GitCommit,
    Root,
    Selected,
    UvPackage,
    build_requires,
    mismatch,
    parse,
    select,
    sha256_of,
)
from imagegen.spec.model import Cell, GitSource, Sdist

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
        self, cell: Cell, target: WheelTarget, compiled: Mapping[str, Compiled], attempts: Attempts, context: Context
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
                with self.attempts.attempt():
                    commits[name], archives[name] = self._source(name, version, commit)
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
