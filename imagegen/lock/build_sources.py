"""The inputs of a source build: recorded when a lock is made, fetched when it is built."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from imagegen.checks.worker import source
from imagegen.checks.worker.errors import Refused
from imagegen.core import data, git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, FetchError, Location, LockError
from imagegen.core.git import command
from imagegen.core.git.submodule import Submodule
from imagegen.core.image_format import EPOCH
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.core.net import MissingFiles, package_index
from imagegen.core.store import Store, disk
from imagegen.core.text import counted
from imagegen.lock.components import Compiled
from imagegen.lock.model import GIT, LOCAL, LockedBuild, LockedFile, LockedGit, LockedPatch, archive_name
from imagegen.lock.sources import RequiredFile, fetch_commit, fetch_files
from imagegen.spec.recipe import Commit, LocalSource, Recipe, SdistFile


def source_of(component: Compiled, context: Context) -> LockedFile:
    """Return the file that the build unpacks. Commits and directories are packed into the store. Raises FetchError."""
    release = component.recipe.releases[component.version]
    if isinstance(release, SdistFile):
        return LockedFile(release.filename, release.size, release.sha256, package_index.DEFAULT)
    folder = f"{component.package}-{component.version}"
    if isinstance(release, LocalSource):
        with locate_errors(release.where):
            packed, index = git.pack(release.path, folder, context.store), LOCAL
        name = release.path.name if release.path.is_file() else archive_name(component.package, component.version)
    else:
        packed, index = git.archive(_commit(release), folder, context), GIT
        name = archive_name(component.package, component.version)
        for paths, subject in ((packed.submodules, "submodules are"), (packed.pointers, "files in Git LFS are")):
            if paths:
                context.progress.say(f"{folder} from {release.url}: {subject} left out: {', '.join(paths)}")
    return LockedFile(name, packed.size, packed.digest.removeprefix("sha256:"), index)


def commit_of(component: Compiled) -> tuple[LockedGit | None, tuple[Submodule, ...]]:
    """Return the commit of the release with its submodules; (None, ()) for another kind of source."""
    release = component.recipe.releases[component.version]
    if not isinstance(release, Commit):
        return None, ()
    return LockedGit(release.ref or release.commit[:12], release.url, release.commit, release.tree), release.submodules


def patches_of(recipe: Recipe) -> tuple[LockedPatch, ...]:
    return tuple(LockedPatch(patch.path.name, patch.sha256) for patch in recipe.patches)


def fetch_sources(builds: Iterable[LockedBuild], recipes: Mapping[str, Recipe], context: Context) -> None:
    """Fetch the sources, patches and build requirements of the builds into the store, each by its hash.

    `recipes` are the cell's, by package. Raises MissingFiles with all missing files, FetchError, LockError for
    local sources that changed, ReproducibilityError for an archive that came out differently.
    """
    builds = tuple(builds)
    for build in builds:
        _keep_patches(build, recipes[build.name].of(build.version), context.store)
    files = (file for build in builds for file in RequiredFile.of(build) if file.file.index != LOCAL)
    required = [item for item in files if not context.store.intact(item.file.digest, item.file.size)]
    lacking: MissingFiles | None = None
    for build in builds:
        if build.source.index == LOCAL:
            _require_unchanged(build, recipes[build.name], context.store)
        try:
            fetch_commit(build, context)
        except MissingFiles as error:
            lacking = lacking.also(error.files) if lacking else error
    try:
        fetch_files(f"fetching the sources of {counted(len(builds), 'source build')}", required, context)
    except MissingFiles as error:
        lacking = lacking.also(error.files) if lacking else error
    if lacking:
        raise lacking


def require_unchanged(builds: Iterable[LockedBuild], recipes: Mapping[str, Recipe], store: Store) -> None:
    """Raise LockError if sources on this disk differ from the locked ones, FetchError if they are absent."""
    for build in builds:
        _require_unchanged(build, recipes[build.name], store)


@contextmanager
def patched_sources(build: LockedBuild, store: Store, settings: Settings) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """Yield a temporary directory with the build's sources, patched, and the patched files' paths in it.

    The archive and the patches are in the store. Raises BuildError for an archive that cannot be unpacked, and for a
    patch that does not apply, removes a file or renames one.
    """
    with store.temporary_directory("sources") as work_dir:
        archive, unpacked = work_dir / build.source.filename, work_dir / "unpacked" / "source"
        archive.symlink_to(store.path(build.source.digest))
        try:
            _require_bounded(archive)
            source.unpack(archive, unpacked, EPOCH)
            paths = tuple(
                sorted({path for patch in build.patches for path in _apply(patch, unpacked, store, settings)})
            )
        except (Refused, OSError) as error:
            if isinstance(error, OSError) and disk.is_full(error):
                raise
            raise BuildError(
                f"{build.name} {build.version} cannot be compiled from its sources",
                code="source-build-sources-invalid",
                why=(error.strerror if isinstance(error, OSError) else None) or str(error),
                fix="correct its recipe under wheels/ and lock again",
            ) from error
        yield unpacked, paths


def _require_bounded(archive: Path) -> None:
    """Raise Refused for an archive with too many or too large members, since the worker unpacks all of them."""
    allowance = Allowance(members=1_000_000, contents=16 << 30)
    try:
        with tarfile.open(archive, tarinfo=Bounded) as tar:
            for member in members(tar):
                if not allowance.take(member.size, member.name, member.linkname):
                    raise Refused(f"{archive.name}: it holds more than any sources hold")
    except DAMAGED as error:
        raise Refused(f"{archive.name}: no tar archive that can be read: {error}") from error


def _apply(patch: LockedPatch, sources: Path, store: Store, settings: Settings) -> Iterator[Path]:
    """Apply a unified diff below `sources`; yield the paths of the files that it changes or adds. Raises Refused."""
    content = str(store.path(patch.digest))
    env = command.environment(settings.env, os.devnull)
    try:
        stats = command.run(sources, env, ["apply", "--numstat", "-z", content])
        command.run(sources, env, ["apply", "--whitespace=nowarn", content])
    except command.FailedError as error:
        raise Refused(f"{patch.filename}: {str(error).strip().replace(content, patch.filename)}") from error
    for line in stats.rstrip("\0").split("\0"):
        path = Path(line.split("\t", 2)[2])
        if not (sources / path).is_file():
            raise Refused(f"{patch.filename}: it removes or renames {path}; a patch may change and add files only")
        yield path


def _require_unchanged(build: LockedBuild, recipe: Recipe, store: Store) -> None:
    folder = f"{build.name}-{build.version}"
    release = recipe.releases.get(build.version)
    if not isinstance(release, LocalSource):
        raise LockError(f"{folder} has no directory to be compiled from", code="lock-sources-invalid", fix="lock again")
    with locate_errors(release.where):
        git.unchanged(release.path, folder, build.source.digest, store)


@contextmanager
def locate_errors(where: Location | None) -> Iterator[None]:
    """Add the line that names a directory to errors of packing it, unless an error names one of its files."""
    try:
        yield
    except FetchError as error:
        error.where = error.where or where
        raise


def _keep_patches(build: LockedBuild, recipe: Recipe, store: Store) -> None:
    """Write the recipe's patches into the store; the matrix has compared them with the hashes that the lock repeats."""
    for patch in recipe.patches:
        if not store.has(f"sha256:{patch.sha256}"):
            store.write(data.read(patch.path) if patch.content is None else patch.content)
    if lacking := [patch.filename for patch in build.patches if not store.has(patch.digest)]:
        raise LockError(
            f"{', '.join(lacking)} of {build.name} is none of its recipe's patches",
            code="lock-patch-unknown",
            fix="lock again",
        )


def _commit(release: Commit) -> git.TreeSource:
    return git.TreeSource(release.url, release.commit, release.tree, release.ref, release.submodules)
