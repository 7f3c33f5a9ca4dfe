"""A project's lock file as the content of a cell: its files by address and sha256, without asking an index.

Only sdists and commits are fetched, because the file does not have their build requirements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.compat import Fact, Facts, MetadataCache
from imagegen.compat.rule import Override
from imagegen.core import data, git
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, ImagegenError, Location, LockError
from imagegen.core.net import MissingFiles, package_index
from imagegen.core.text import redact
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.components import no_wheel
from imagegen.lock.file import raise_all
from imagegen.lock.model import URL, Lock, LockedBuild, LockedFile, LockedWheel
from imagegen.lock.recipes import pyproject
from imagegen.lock.resolution_inputs import Attempts
from imagegen.lock.sources import RequiredFile, fetch_files
from imagegen.lock.uv_project import ProjectContents, commit_source, route
from imagegen.lock.uv_resolve import Pinned, Remote
from imagegen.projects import uv_lock
from imagegen.projects.locks import PylockFile, UvLockFile, read_pylock, read_uv_lock
from imagegen.projects.model import MarkerTarget, read_text
from imagegen.projects.uv_lock import DistributionFile, GitCommit, Root, UvPackage
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.model import Cell, GitSource, Sdist, StackFile

_DEFAULT_GROUP = "dev"  # that `uv sync` installs by default (uv's documentation of dependency groups)
_NAMED = 5  # packages in a message


@dataclass(frozen=True)
class StackPackage:
    """A package that the file selects, in the terms of both formats.

    Its files are on the index `registry`, or have addresses of their own; or it is a commit; or it lies at the path
    `local` of the project.
    """

    name: str
    version: str | None
    location: Location
    via: tuple[str, ...] = ()
    wheels: tuple[Remote, ...] = ()
    sdist: Remote | None = None
    registry: str | None = None
    commit: GitCommit | None = None
    local: str | None = None


@dataclass(frozen=True)
class ProjectStack:
    """The lock file that a cell names, read."""

    declared: StackFile
    file: UvLockFile | PylockFile

    def contents(self, cell: Cell, target: WheelTarget, attempts: Attempts, context: Context) -> ProjectContents:
        """Return the contents of the file for the cell, and report packages that `uv sync` would install otherwise.

        Commits and sdists that cannot be fetched are recorded in `attempts`. Raises LockError, or LockErrors with the
        line of each package, if the file does not answer the cell, or lacks a file or a hash.
        """
        packages = self.packages(cell, target)
        project_packages = {requirement.component.package for requirement in cell.requirements if requirement.own}
        installed = [package for package in packages if package.local is None]
        pinned = {installed_package.name: self._pinned(installed_package) for installed_package in installed}
        self._require_files(installed, pinned, cell, target)
        commits, archives = self._commits(installed, attempts, context)
        sdists = self._sdists(installed, cell, target, attempts, context)
        for difference in self.differences(package for package in packages if package.name not in project_packages):
            context.progress.say(f"{self.declared.path}: {difference}")
        lacking = {
            installed_package.name for installed_package in installed if installed_package.commit
        } - commits.keys()
        built = [package for package in packages if package.name in project_packages]  # the wheel has the version
        pinned |= {
            installed_package.name: Pinned(
                installed_package.name, installed_package.version or "0", installed_package.via, (), None
            )
            for installed_package in built
        }
        return ProjectContents(
            found=tuple(pinned[name] for name in sorted(pinned.keys() - lacking)),
            routes={installed_package.name: self._route(installed_package, context) for installed_package in installed},
            commits=commits,
            archives=archives,
            choice=f"as {self.declared.path} has it",
            sdists=sdists,
        )

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The packages whose requirements the project overrides, at any version, because the file has the versions."""
        declared = self.file.lock.manifest.overrides if isinstance(self.file, UvLockFile) else ()
        because = f"An override of {self.declared.path}."
        return tuple(Override(name, "", because=because) for name in sorted({override.name for override in declared}))

    def packages(self, cell: Cell, target: WheelTarget) -> tuple[StackPackage, ...]:
        """Return the packages that the file selects, sorted by name. Raises LockError as `contents`."""
        required = {requirement.component.package: requirement for requirement in cell.requirements}
        if isinstance(self.file, UvLockFile):
            locked_names = {locked.name for locked in self.file.lock.package}
            self._require_known(required.keys() - locked_names)
            roots = [Root(name, use.extras) for name, use in sorted(required.items())]
            packages = tuple(_of_uv(self.file, roots, target))
        else:
            packages = tuple(_of_pylock(self.file, target))
            self._require_known(required.keys() - {package.name for package in packages})
        for selected in packages:
            specifier = required[selected.name].specifier if selected.name in required else ""
            if selected.version and not SpecifierSet(specifier).contains(selected.version, prereleases=True):
                raise self._mismatch(
                    f"it has {selected.name} {selected.version}, and the image asks for {specifier}", selected
                )
        return packages

    def differences(self, packages: Iterable[StackPackage]) -> Iterator[str]:
        """Yield a sentence for each package that `uv sync --frozen --no-editable` installs and the image does not."""
        for package in packages:
            if package.local is not None:
                yield f"`uv sync` also installs {package.name} of {package.local}, which the image does not hold"
        if isinstance(self.file, UvLockFile) and _DEFAULT_GROUP not in self.declared.groups:
            roots = {root.name for root in self.file.roots()}
            packages_of_roots = [candidate for candidate in self.file.lock.package if candidate.name in roots]
            if any(package.dev_dependencies.get(_DEFAULT_GROUP) for package in packages_of_roots):
                yield f"`uv sync` also installs the group {_DEFAULT_GROUP}; `groups: [{_DEFAULT_GROUP}]` adds it"

    def changed_packages(self, lock: Lock, cell: Cell) -> list[str]:
        """Return the packages of which the file no longer says what a lock of the cell has. Raises as `contents`."""
        target = WheelTarget.of(cell.platform, cell.base.glibc, lock.interpreter.version)
        project_packages = {requirement.component.package for requirement in cell.requirements if requirement.own}
        selected = [
            package
            for package in self.packages(cell, target)
            if package.local is None and package.name not in project_packages
        ]
        locked = {package.name: package for package in lock.packages if package.name not in project_packages}
        changed = [
            candidate.name for candidate in selected if not _is_locked(candidate, locked.get(candidate.name), target)
        ]
        return changed + sorted(locked.keys() - {candidate.name for candidate in selected})

    def require_unchanged(self, lock: Lock, cell: Cell) -> None:
        """Raise LockError where the file no longer selects the packages and files of a lock of the cell."""
        if changed := self.changed_packages(lock, cell):
            suffix = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
            raise LockError(
                f"the lock of {cell.id} is stale",
                code="lock-stale",
                where=self.declared.where,
                why=f"{self.declared.path} now says otherwise about {', '.join(changed[:_NAMED])}{suffix}",
                fix=f"`imagegen lock {cell.id}`",
            )

    def _require_known(self, unknown: Iterable[str]) -> None:
        if missing := sorted(unknown):
            message = f"it does not have {', '.join(missing)}, which the image names"
            raise self._mismatch(message, fix=f"add it to the project and lock that again, or leave {missing[0]} out")

    def _mismatch(self, why: str, package: StackPackage | None = None, fix: str | None = None) -> LockError:
        return LockError(
            f"{self.declared.path} does not answer this image",
            code="lock-stack-mismatch",
            where=package.location if package else self.declared.where,
            why=why,
            fix=fix or "correct the image's components, or lock the project again",
        )

    def _pinned(self, package: StackPackage) -> Pinned:
        if package.version is None:
            raise self._mismatch(f"it gives no version of {package.name}", package)
        return Pinned(package.name, package.version, package.via, package.wheels, package.sdist)

    @staticmethod
    def _require_files(
        packages: Iterable[StackPackage], pinned: Mapping[str, Pinned], cell: Cell, target: WheelTarget
    ) -> None:
        """Raise LockError for each package without a file that the cell can install."""
        errors: list[ImagegenError] = []
        for package in packages:
            fits = target.best((file.filename, file) for file in package.wheels) is not None
            if package.commit or fits or package.name in cell.recipes or (package.sdist and not package.wheels):
                continue
            error = no_wheel(pinned[package.name], target, cell)
            error.where = package.location
            errors.append(error)
        raise_all(errors)

    @staticmethod
    def _route(package: StackPackage, context: Context) -> str:
        """Return the index alias of the package's files; a mirror that is the user's default index is PyPI."""
        default_url = package_index.url_of(package_index.DEFAULT, context.settings)
        if package.registry and default_url and package.registry.rstrip("/") == default_url.rstrip("/"):
            return package_index.DEFAULT
        return route(package.registry, package.commit)

    @staticmethod
    def _commits(
        packages: Iterable[StackPackage], attempts: Attempts, context: Context
    ) -> tuple[dict[str, GitSource], dict[str, git.PackedTree]]:
        commits, archives = {}, {}
        for package in packages:
            if package.commit and package.version:
                with attempts.attempt():
                    commits[package.name], archives[package.name] = commit_source(
                        package.name, package.version, package.commit, None, context
                    )
        return commits, archives

    def _sdists(
        self, packages: Iterable[StackPackage], cell: Cell, target: WheelTarget, attempts: Attempts, context: Context
    ) -> dict[str, Sdist]:
        """Return version and build requirements of the installed sdists that no component declares."""
        declared = {(sdist.package, sdist.sdist.version) for sdist in cell.sdists if sdist.sdist}
        metadata = {}
        for selected in packages:
            fits = target.best((file.filename, file) for file in selected.wheels) is not None
            if not selected.sdist or not selected.version or fits or selected.commit or selected.name in cell.recipes:
                continue
            if (selected.name, selected.version) not in declared:
                with attempts.attempt():
                    metadata[selected.name] = self._sdist(selected, context)
        return metadata

    def _sdist(self, package: StackPackage, context: Context) -> Sdist:
        """Fetch an sdist and read the requirements of its build backend. Raises FetchError, LockError."""
        assert package.sdist and package.version  # noqa: S101 - the caller passes only such packages
        try:
            return read_sdist(package.name, package.version, package.sdist, self._route(package, context), context)
        except FetchError as error:
            error.where = error.where or package.location
            raise


def read_sdist(name: str, version: str, remote: Remote, alias: str, context: Context) -> Sdist:
    """Fetch an sdist of an index, and return the requirements of its build backend. Raises FetchError, LockError."""
    if remote.filename.endswith(".zip"):
        raise LockError(
            f"{name} {version} has no wheel, and {remote.filename} is not a tar archive",
            code="lock-no-wheel",
            why="the sandbox builds only sdists that are tar archives, as PEP 625 requires",
            fix=f"exclude this version of {name}, or build its wheel and name it with `wheel:`",
        )
    url = remote.url if alias == URL else None
    hint = None if url else package_index.hint(remote.url, remote.filename)
    file = LockedFile(remote.filename, remote.size, remote.sha256, alias, hint, url)
    fetch_files(remote.filename, [RequiredFile(name, file)], context)
    archive = git.PackedTree(file.digest, context.store.path(file.digest).stat().st_size)
    project = pyproject(context.store, archive, remote.filename.removesuffix(".tar.gz"), "")
    return Sdist(version, (), uv_lock.build_requires(project))


def facts_of_stack(cell: Cell, project: Path, metadata: MetadataCache) -> Facts:
    """Return the facts of a cell with a stack: its packages in the versions of the lock file, and the file's overrides.

    A commit is not a release, whatever its version; and the file may have releases that `metadata` lacks, so that only
    their versions count. Raises LockError, ProjectFileError.
    """
    assert cell.stack  # noqa: S101 - the caller passes only such cells
    target = WheelTarget.of(cell.platform, cell.base.glibc, cell.interpreter.version or cell.python)
    stack, facts = read_stack(cell.stack, project), facts_of_cell(cell)
    packages = dict(facts.packages)
    for package in stack.packages(cell, target):
        if package.local is None and package.version:
            fact, releases = Fact.requested(f"=={package.version}", ""), metadata.of(package.name)
            is_asked = releases is not None and package.name in facts.packages  # its release has to be known
            is_known = releases is not None and bool(releases.within(fact))
            packages[package.name] = replace(fact, built=bool(package.commit) or not (is_known or is_asked))
    overrides = {override.package: override for override in (*stack.overrides, *cell.overrides)}
    return replace(facts, packages=packages, overrides=tuple(overrides[name] for name in sorted(overrides)))


def locate_missing(error: MissingFiles, path: Path) -> None:
    """Set the place of an error to the line of the lock file `path` that has the first of the files, if any has one."""
    lines = read_text(path, path.parent, longest=data.MAX_LOCK).splitlines()
    hashes = [file.sha256 for file in error.files]
    line = next((number for number, text in enumerate(lines, 1) if any(sha256 in text for sha256 in hashes)), None)
    if line:
        error.where = Location(path, line)


def with_needed_recipes(cell: Cell, contents: ProjectContents, target: WheelTarget) -> Cell:
    """Return the cell with recipes only for packages of which the project's lock file has no wheel that fits.

    Their requirements have the versions of the file.
    """
    lacking = {
        package.name: package.version
        for package in contents.found
        if package.name in cell.recipes and not target.best((file.filename, file) for file in package.wheels)
    }
    return replace(
        cell,
        recipes={name: recipe for name, recipe in cell.recipes.items() if name in lacking},
        requirements=tuple(
            replace(requirement, specifier=f"=={lacking[requirement.component.package]}")
            if requirement.component.package in lacking
            else requirement
            for requirement in cell.requirements
        ),
    )


def read_stack(declared: StackFile, project: Path) -> ProjectStack:
    """Read the lock file that an image names. Raises LockError, ProjectFileError."""
    path = project / declared.path
    try:
        data.require_within(path, project)
    except OSError as error:
        raise LockError(
            f"{declared.path} lies outside of the project",
            code="lock-stack-mismatch",
            where=declared.where,
            why=error.strerror,
            fix="name a file below the project's directory",
        ) from error
    read = read_uv_lock if declared.kind == "uv" else read_pylock
    return ProjectStack(declared, read(path, declared.extras, declared.groups, project))


def _of_uv(file: UvLockFile, components: Iterable[Root], target: WheelTarget) -> Iterator[StackPackage]:
    line_of = dict(zip(map(id, file.lock.package), file.lines, strict=True))
    where = str(file.path)
    selected = uv_lock.select(file.lock, file.roots(), target.python, target.machine, where)
    names = {choice.package.name for choice in selected}
    # Only the requirements of the project lead to the version of a package that has several.
    if missing := [component for component in components if component.name not in names or component.extras]:
        selected = uv_lock.select(file.lock, (*file.roots(), *missing), target.python, target.machine, where)
    for selection in selected:
        package, source = selection.package, selection.package.source
        location = Location(file.path, line_of[id(package)])
        yield StackPackage(
            package.name,
            package.version,
            location,
            selection.via,
            tuple(_remote(wheel, package, location) for wheel in package.wheels) if not source.path else (),
            _remote(package.sdist, package, location) if package.sdist and not source.path else None,
            source.registry,
            source.commit,
            source.member or source.path,
        )


def _remote(file: DistributionFile, package: UvPackage, location: Location) -> Remote:
    if file.url is None:
        raise _unusable(f"{file.name} of {package} has no address", location)
    return Remote(file.name, file.url, uv_lock.sha256_of(file, package, location), file.size, file.uploaded)


def _of_pylock(file: PylockFile, target: WheelTarget) -> Iterator[StackPackage]:
    line_of = dict(zip(map(id, file.lock.packages), file.lines, strict=True))
    ranked = sorted(target.ranks, key=target.ranks.__getitem__)
    chosen = file.select(MarkerTarget(target.python, target.machine), ranked)
    for package, _ in sorted(chosen, key=lambda pair: pair[0].name):
        location = Location(file.path, line_of[id(package)])
        if package.archive:
            message = f"{package.name} is an archive of sources; a lock needs a wheel, an sdist of an index or a commit"
            raise _unusable(message, location)
        yield StackPackage(
            canonicalize_name(package.name),
            str(package.version) if package.version else None,
            location,
            (),
            tuple(_of_file(wheel, location) for wheel in package.wheels or ()),
            _of_file(package.sdist, location) if package.sdist else None,
            package.index,
            _commit_of(package.vcs, location) if package.vcs else None,
            package.directory.path if package.directory else None,
        )


def _of_file(file: Any, location: Location) -> Remote:
    """Return a wheel or sdist of a pylock.toml."""
    sha256 = str(file.hashes.get("sha256", ""))
    if not file.url:
        raise _unusable(f"{file.filename} has no address", location)
    if not sha256:
        raise LockError(
            f"{file.filename} has no sha256", code="lock-no-hash", where=location, fix="lock the project again"
        )
    day = file.upload_time and str(file.upload_time.date())
    return Remote(file.filename, file.url, sha256, file.size, day)


def _commit_of(vcs: Any, location: Location) -> GitCommit:
    if vcs.type != "git" or not vcs.url:
        raise _unusable(f"{redact(str(vcs.url or vcs.path))} is not a Git repository with an address", location)
    return GitCommit(vcs.url, vcs.commit_id, vcs.subdirectory or "")


def _unusable(message: str, location: Location) -> LockError:
    fix = "lock the project for an index, a commit or an address"
    return LockError(message, code="lock-stack-mismatch", where=location, fix=fix)


def _is_locked(package: StackPackage, locked: LockedWheel | LockedBuild | None, target: WheelTarget) -> bool:
    """Return whether the lock has the package as the file selects it."""
    if locked is None or package.version is None or Version(locked.version) != Version(package.version):
        return False
    if isinstance(locked, LockedBuild):
        return True  # of the version that the file has; it has no wheel that fits
    source = locked.sdist
    if package.commit:
        return source is not None and source.git is not None and source.git.commit == package.commit.commit
    remote = target.best((file.filename, file) for file in package.wheels) or package.sdist
    file = source.file if source else locked.fetched
    return remote is not None and file.sha256 == remote.sha256
