"""The inputs of a source build: recorded when a lock is made, fetched when it is built."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from imagegen.core import data, git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, FetchError, LockError, ReproducibilityError
from imagegen.core.git import command
from imagegen.core.net import Client, Missing, MissingFiles
from imagegen.core.store import Store, disk
from imagegen.core.text import counted
from imagegen.core.types import EPOCH
from imagegen.incontainer.worker import source
from imagegen.incontainer.worker.errors import Refused
from imagegen.plan.lock import indexes
from imagegen.plan.lock.model import (
    GIT,
    LOCAL,
    LockedBuild,
    LockedFile,
    LockedGit,
    LockedPatch,
    archive_name,
)
from imagegen.plan.lock.recipes import Compiled
from imagegen.plan.lock.sources import Finder, RequiredFile, in_parallel, mirrored
from imagegen.plan.matrix.recipe import Commit, LocalSource, Recipe, SdistFile


def source_of(each: Compiled, context: Context) -> LockedFile:
    """The file that the build unpacks. What is on no index is packed into the store now. Raises FetchError."""
    release = each.recipe.releases[each.version]
    if isinstance(release, SdistFile):
        return LockedFile(release.filename, release.size, release.sha256, indexes.DEFAULT)
    folder = f"{each.package}-{each.version}"
    if isinstance(release, LocalSource):
        with _locate_errors(release):
            made, index = git.pack(release.path, folder, context.store), LOCAL
        name = release.path.name if release.path.is_file() else archive_name(each.package, each.version)
    else:
        made, index = git.archive(_commit(release), folder, context), GIT
        name = archive_name(each.package, each.version)
        for paths, what in ((made.submodules, "submodules are"), (made.pointers, "files in Git LFS are")):
            if paths:
                context.progress.say(f"{folder} from {release.url}: {what} left out: {', '.join(paths)}")
    return LockedFile(name, made.size, made.digest.removeprefix("sha256:"), index)


def commit_of(each: Compiled) -> tuple[LockedGit | None, tuple[git.Submodule, ...]]:
    """The commit that the release is, with the submodules that come along; of another source none."""
    release = each.recipe.releases[each.version]
    if not isinstance(release, Commit):
        return None, ()
    return LockedGit(release.ref or release.commit[:12], release.url, release.commit, release.tree), release.submodules


def patches_of(recipe: Recipe) -> tuple[LockedPatch, ...]:
    return tuple(LockedPatch(patch.path.name, patch.sha256) for patch in recipe.patches)


def fetch_sources(builds: Iterable[LockedBuild], recipes: Mapping[str, Recipe], context: Context) -> None:
    """Bring all that the builds begin with into the store: sources, patches, build requirements, each by its hash.

    `recipes` are the cell's, by package. Raises MissingFiles with all that could not be had, FetchError, LockError for
    what on this disk is no longer as it was locked, ReproducibilityError for an archive that came out differently.
    """
    builds = tuple(builds)
    for build in builds:
        _keep_patches(build, recipes[build.name].of(build.version), context.store)
    required = [RequiredFile(each.name, each.file) for build in builds for each in build.build_requires]
    required += [
        RequiredFile(each.name, each.source, recipe=True) for each in builds if each.source.index not in (GIT, LOCAL)
    ]
    required = [each for each in required if not context.store.intact(each.file.digest, each.file.size)]
    total = sum(each.file.estimate for each in required)
    label = f"fetching what {counted(len(builds), 'source build')} begins with"
    lacking: MissingFiles | None = None
    for build in builds:
        try:
            _pack(build, recipes[build.name], context)
        except MissingFiles as error:
            lacking = lacking.also(error.files) if lacking else error
    with Client(context.settings) as client, context.progress.meter(label, total) as meter:
        finder = Finder(client, context.store, context.settings, meter)
        try:
            for _ in in_parallel([partial(finder.fetch, each) for each in required], client):
                pass
        except MissingFiles as error:
            lacking = lacking.also(error.files) if lacking else error
    if lacking:
        raise lacking


def require_unchanged(builds: Iterable[LockedBuild], recipes: Mapping[str, Recipe], store: Store) -> None:
    """Raise LockError where sources on this disk are not as they were locked, FetchError where they are gone."""
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


def _apply(patch: LockedPatch, sources: Path, store: Store, settings: Settings) -> Iterator[Path]:
    """Apply a unified diff below `sources`; yield the paths of the files that it changes or adds. Raises Refused."""
    content = str(store.path(f"sha256:{patch.sha256}"))
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


def _pack(build: LockedBuild, recipe: Recipe, context: Context) -> None:
    """Bring the archive of a commit or of a directory into the store; other sources have an address."""
    folder = f"{build.name}-{build.version}"
    if build.source.index == LOCAL:
        _require_unchanged(build, recipe, context.store)
    elif build.git and not (
        context.store.intact(build.source.digest, build.source.size) or mirrored(build.source, context)
    ):
        commit = git.TreeSource(
            build.git.url,
            build.git.commit,
            build.git.tree,
            submodules=build.submodules,
        )
        try:
            made = git.archive(commit, folder, context)
        except FetchError as error:
            raise MissingFiles([_missing(build, build.git, error)], context.store.root) from error
        if made.digest != build.source.digest:
            raise ReproducibilityError(
                f"{build.git.url} at {build.git.commit} gives another archive than the lock names",
                code="not-reproducible-archive",
                why=f"expected {build.source.digest}, got {made.digest}, of the same tree {build.git.tree}",
                fix="use the imagegen that wrote the lock, or lock again",
            )


def _require_unchanged(build: LockedBuild, recipe: Recipe, store: Store) -> None:
    folder = f"{build.name}-{build.version}"
    release = recipe.releases.get(build.version)
    if not isinstance(release, LocalSource):
        raise LockError(f"{folder} has no directory to be compiled from", code="lock-sources-invalid", fix="lock again")
    with _locate_errors(release):
        git.unchanged(release.path, folder, build.source.digest, store)


@contextmanager
def _locate_errors(source: LocalSource) -> Iterator[None]:
    """Add the line that names the directory to errors of packing it, unless an error names one of its files."""
    try:
        yield
    except FetchError as error:
        error.where = error.where or source.where
        raise


def _missing(build: LockedBuild, commit: LockedGit, error: FetchError) -> Missing:
    name = f"{build.source.filename}, {commit.url} at {commit.commit}"
    tried = error.summary
    return Missing(name, build.source.sha256, (tried,), error.fix or "run this where that host can be reached")


def _keep_patches(build: LockedBuild, recipe: Recipe, store: Store) -> None:
    """Write the recipe's patches into the store; the matrix has compared them with the hashes that the lock repeats."""
    for patch in recipe.patches:
        if not store.has(f"sha256:{patch.sha256}"):
            store.write(data.read(patch.path))
    if lacking := [each.filename for each in build.patches if not store.has(f"sha256:{each.sha256}")]:
        raise LockError(
            f"{', '.join(lacking)} of {build.name} is none of its recipe's patches",
            code="lock-patch-unknown",
            fix="lock again",
        )


def _commit(release: Commit) -> git.TreeSource:
    return git.TreeSource(release.url, release.commit, release.tree, release.ref, release.submodules)
