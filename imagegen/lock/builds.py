"""Source builds in a lock. Defines the key of their inputs, the built wheel, and the sources of a build."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from imagegen.checks import WORKER
from imagegen.checks.worker import source
from imagegen.checks.worker.errors import Refused
from imagegen.core import data, git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, FetchError, Location, LockError
from imagegen.core.git import command
from imagegen.core.layer_tar import DAMAGED, Allowance, Bounded, members
from imagegen.core.net import MissingFiles, package_index
from imagegen.core.store import Store, disk
from imagegen.core.text import counted
from imagegen.core.types import EPOCH, Submodule
from imagegen.lock.foundation import LockedBase, LockedDeb, interpreter_key
from imagegen.lock.model import (
    BUILT,
    GIT,
    LOCAL,
    Lock,
    LockedBuild,
    LockedFile,
    LockedGit,
    LockedPatch,
    LockedWheel,
    archive_name,
)
from imagegen.lock.recipes import Compiled
from imagegen.lock.sources import RequiredFile, fetch_commit, fetch_files
from imagegen.lock.tables import HashedFile
from imagegen.oci.documents import canonical_json, digest_of
from imagegen.spec.recipe import Commit, LocalSource, Recipe, SdistFile


@dataclass(frozen=True)
class BuiltWheel(HashedFile):
    """A wheel of the wheelhouse. `record` describes its build (sources, flags, toolchain, peak memory, duration)."""

    key: str  # "sha256:...": of everything that decides it
    name: str
    version: str
    filename: str
    sha256: str
    size: int  # bytes
    record: Mapping[str, Any]


# The key of a source build, from all that decides its wheel; and the lock with the wheels that were built.
#
# The key names a wheel in every wheelhouse, so that one input is compiled once. It covers all that can change the
# wheel's bytes. It does not cover the reason for the build, the dependent packages, or the number of parallel jobs.

BUILDER = "builder"  # name of an input of locks with builds: the digest of the programs that run a build
_FORMAT = 1  # of the key; a new number compiles everything anew
_COMPILING = re.compile(
    r"(gcc|g\+\+|cpp)(-\d+)?|binutils|libc6-dev|lib(stdc\+\+|gcc)-\d+-dev|python3(\.\d+)?(-minimal|-dev)?|libpython3.*"
)


@functools.cache
def builder() -> str:
    """Hex sha256 of the programs that run a build in its container."""
    digest = hashlib.sha256()
    for path in sorted(WORKER.rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(WORKER)} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def key_of(build: LockedBuild, lock: Lock) -> str:
    """Return the digest of all inputs of the build's wheel, from the lock; the build's own `key` is not read."""
    shas = {wheel.name: wheel.file.sha256 for wheel in lock.wheels}
    archive = [interpreter_key(lock.interpreter)] if lock.interpreter.file else []
    inputs = {
        "format": _FORMAT,
        "builder": lock.inputs.get(BUILDER),
        "release": [build.name, build.version],
        "source": [build.source.filename, build.source.sha256],
        "git": [build.git.commit, build.git.tree] if build.git else None,
        "submodules": [[submodule.path, submodule.commit, submodule.tree] for submodule in build.submodules],
        "patches": [patch.sha256 for patch in build.patches],
        "build-requires": [[require.name, require.file.sha256] for require in build.build_requires],
        "against": [[name, shas.get(name)] for name in build.against],
        "compiler": compiler(lock.base, lock.debs),
        "interpreter": [lock.interpreter.path, lock.python, lock.platform, *archive],
        "env": dict(build.env),
        "architectures": build.architectures,
    }
    return digest_of(canonical_json(inputs))


def keyed(build: LockedBuild, lock: Lock) -> LockedBuild:
    """Return the build with its key in this lock."""
    return replace(build, key=key_of(build, lock))


def compiler(base: LockedBase, debs: Iterable[LockedDeb]) -> list[str]:
    """Return the compilers and Python, as digest of the base's image and as name and version of Debian packages."""
    image = [base.content.digest] if base.content else []
    return [*image, *(f"{deb.name}={deb.version}" for deb in debs if _COMPILING.fullmatch(deb.name))]


def with_built_wheels(lock: Lock, built: Mapping[str, BuiltWheel]) -> Lock:
    """Return the lock with the wheels of its builds, given by package; an image is built of it, and no file holds it.

    Raises BuildError for a build without its wheel, or with the wheel of another.
    """
    if not lock.builds:
        return lock
    built_wheels = [_locked_wheel(build, built.get(build.name)) for build in lock.builds]
    index_wheels = [wheel for wheel in lock.wheels if wheel.build is None]
    return replace(lock, wheels=tuple(sorted((*index_wheels, *built_wheels), key=lambda wheel: wheel.name)))


def _locked_wheel(build: LockedBuild, wheel: BuiltWheel | None) -> LockedWheel:
    if wheel is None or wheel.key != build.key:
        raise BuildError(
            f"{build.name} {build.version} has not been built",
            code="source-build-required",
            why=f"the wheelhouse has no wheel with the key {build.key}",
            fix="`imagegen wheels build` makes it",
        )
    name, version, _, _ = parse_wheel_filename(wheel.filename)
    if (name, version) != (build.name, Version(build.version)):
        raise BuildError(
            f"{wheel.filename} is not a wheel of {build.name} {build.version}",
            code="source-build-wrong-release",
            why=f"the wheelhouse has it under the key {build.key}",
            fix="`imagegen wheels gc` forgets it, then build again",
        )
    file = LockedFile(wheel.filename, wheel.size, wheel.sha256, BUILT)
    return LockedWheel(
        build.name, build.version, file, via=build.via, because=build.because, choice=build.choice, build=build.key
    )


def misbuilt(lock: Lock) -> tuple[str, ...]:
    """Return the builds whose key does not match the lock's description of them, which only an edit can cause."""
    return tuple(build.name for build in lock.builds if build.key != key_of(build, lock))


# The inputs of a source build: recorded when a lock is made, fetched when it is built.


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
