"""The blobs that a lock refers to, by digest, with names for human readers: what the store keeps for it, and names in
errors.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, ReproducibilityError
from imagegen.core.net import Client, Missing, MissingFiles
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image import base
from imagegen.image.inputs.foundation import bottom_key, sdist_builder, tree_key
from imagegen.plan.lock import interpreters, sdist
from imagegen.plan.lock.model import Lock, LockedGit, LockedSdist, LockedWheel
from imagegen.plan.lock.sources import Finder, RequiredFile, in_parallel, mirrored, missing


def contents(lock: Lock) -> dict[str, str]:
    """Digest -> what it is: files of the indexes, of builds, Debian packages, recorded layers packed and unpacked."""
    wheels = [lock.uv, *lock.wheels]
    sdists = [wheel.sdist for wheel in wheels if wheel.sdist]
    wheels += [needed for sdist in sdists for needed in sdist.build_requires]
    wheels += [needed for build in lock.builds for needed in build.build_requires]
    files = [*(wheel.file for wheel in wheels), *(sdist.file for sdist in sdists)]
    files += [build.source for build in lock.builds]
    found = {file.digest: file.filename for file in files}
    found |= {f"sha256:{patch.sha256}": patch.filename for build in lock.builds for patch in build.patches}
    found |= {
        deb.digest: f"Debian package {deb.name} {deb.version}"
        for deb in (*lock.base.debs, *(lock.added.debs if lock.added else ()))
    }
    if lock.interpreter.file:
        found[lock.interpreter.file.digest] = lock.interpreter.file.filename
    if lock.interpreter.file or lock.added:
        found[tree_key(lock.foundation)] = f"what lies under the stack of {lock.cell}, unpacked"
    if lock.added:
        found[bottom_key(lock.foundation)] = f"base {lock.base.name} with packages, unpacked"
    if lock.base.content:
        found[base.key(lock.base)] = f"base {lock.base.name}, unpacked"
        own = enumerate(lock.base.content.layers, 1)
        found |= {layer.digest: f"layer {number} of {lock.base.image}" for number, layer in own}
    for layer in lock.record.layers if lock.record else ():
        found |= {layer.digest: f"layer {layer.name}", layer.diff_id: f"layer {layer.name}, unpacked"}
    return found


# Bringing all that a lock names into the store: wheels fetched by hash, and those made from their sdists.


def fetch(lock: Lock, context: Context) -> None:
    """Bring every wheel of the lock into the store. Raises as `fetch_each`."""
    for _ in fetch_each(lock, context):
        pass


def fetch_parts(locked: Lock, context: Context) -> None:
    """Bring what the lock's sdists and commits become wheels of, without making any. Raises as `fetch_each`."""
    workshop = sdist_builder(locked.foundation, context)
    wheels = [wheel for wheel in locked.wheels if wheel.sdist]
    total = sum(required.file.estimate for wheel in wheels for required in _parts(wheel))
    with (
        Client(context.settings) as client,
        context.progress.meter(f"fetching {counted(len(wheels), 'source')}", total) as meter,
    ):
        finder = Finder(client, context.store, context.settings, meter)
        for wheel in wheels:
            _bring(wheel, finder, workshop, context.settings)


def fetch_each(lock: Lock, context: Context, rootfs: Callable[[], Path] | None = None) -> Generator[LockedWheel]:
    """Yield each wheel of the lock as soon as it is in the store: present ones first, then the others in the lock's
    order.

    `rootfs` returns the tree under the venv, where the caller builds it anyway. Raises MissingFiles at the end, naming
    all files that could not be fetched and every source that was tried for each.
    """
    absent: list[LockedWheel] = []
    for wheel in lock.wheels:
        if context.store.intact(wheel.file.digest, wheel.file.size):  # else a bad disk would be taken for a bad wheel
            yield wheel
        else:
            absent.append(wheel)
    if not absent:
        return
    workshop = sdist_builder(lock.foundation, context)
    if rootfs:
        workshop = replace(workshop, rootfs=rootfs)
    total = sum(required.file.estimate for wheel in absent for required in _parts(wheel))
    with (
        Client(context.settings) as client,
        context.progress.meter(f"fetching {counted(len(absent), 'wheel')}", total) as meter,
    ):
        finder = Finder(client, context.store, context.settings, meter)
        yield from in_parallel(
            [partial(_obtain, wheel, finder, workshop, context.settings) for wheel in absent], client
        )


def _parts(wheel: LockedWheel) -> list[RequiredFile]:
    """The files that an index has to give for this wheel."""
    if wheel.sdist is None:
        return [RequiredFile(wheel.name, wheel.file)]
    own = [] if wheel.sdist.git else [RequiredFile(wheel.name, wheel.sdist.file)]
    return [*own, *(RequiredFile(each.name, each.file) for each in wheel.sdist.build_requires)]


def complete(error: MissingFiles, lock: Lock, store: Store) -> MissingFiles:
    """Extend `error` by all other files that the store lacks: wheels, sdists, build requirements, Debian packages,
    commits.

    A build ends at its first missing file; with this, a machine without network reports the whole list at once.
    """
    parts = (part for wheel in lock.wheels if not store.has(wheel.file.digest) for part in _parts(wheel))
    lacking = [missing(part) for part in parts if not store.has(part.file.digest)]
    sources = [wheel.sdist for wheel in lock.wheels if wheel.sdist and not store.has(wheel.file.digest)]
    lacking += [_missing_commit(source) for source in sources if source.git and not store.has(source.file.digest)]
    archive = interpreters.missing(lock.interpreter, store)
    lacking += [*([archive] if archive else []), *base.missing(lock.base, store)]
    if lock.added:
        lacking += base.missing_packages(lock.added, base.key(lock.base), store)
    return error.also(lacking)


def _bring(wheel: LockedWheel, finder: Finder, workshop: sdist.SdistBuilder, settings: Settings) -> None:
    """Fetch all files that this wheel is made of. Raises MissingFiles with all that could not be fetched."""
    lacking: MissingFiles | None = None
    if wheel.sdist and wheel.sdist.git:
        try:
            _pack(wheel, wheel.sdist, wheel.sdist.git, workshop, settings)
        except FetchError as error:
            lacking = MissingFiles([_missing_commit(wheel.sdist, error)], workshop.store.root)
    for required in _parts(wheel):
        try:
            finder.fetch(required)
        except MissingFiles as error:
            lacking = lacking.also(error.files) if lacking else error
    if lacking:
        raise lacking


def _obtain(wheel: LockedWheel, finder: Finder, workshop: sdist.SdistBuilder, settings: Settings) -> LockedWheel:
    _bring(wheel, finder, workshop, settings)
    if wheel.sdist:
        built = sdist.build(wheel.name, wheel.version, wheel.sdist, workshop)
        if (built.sha256, built.size) != (wheel.file.sha256, wheel.file.size):
            raise ReproducibilityError(
                f"{wheel.sdist.file.filename} no longer gives the wheel that the lock names",
                code="not-reproducible-sdist",
                where=wheel.file.filename,
                why=f"expected sha256 {wheel.file.sha256}, got {built.sha256}",
                fix="if the base moved on purpose, lock again",
            )
    return wheel


def _pack(
    wheel: LockedWheel, source: LockedSdist, locked: LockedGit, workshop: sdist.SdistBuilder, settings: Settings
) -> None:
    """Bring the archive of the wheel's commit into the store. Raises FetchError, ReproducibilityError."""
    if workshop.store.intact(source.file.digest, source.file.size) or mirrored(
        source.file, Context(workshop.store, settings, workshop.progress)
    ):
        return
    commit = git.TreeSource(locked.url, locked.commit, locked.tree)
    made = git.archive(commit, f"{wheel.name}-{wheel.version}", Context(workshop.store, settings, workshop.progress))
    if made.digest != source.file.digest:
        raise ReproducibilityError(
            f"{locked.url} at {locked.commit} gives another archive than the lock names",
            code="not-reproducible-archive",
            why=f"expected {source.file.digest}, got {made.digest}, of the same tree {locked.tree}",
            fix="use the imagegen that wrote the lock, or lock again",
        )


def _missing_commit(source: LockedSdist, error: FetchError | None = None) -> Missing:
    assert source.git  # noqa: S101 - asked for such alone
    tried = (error.summary,) if error else ()
    name = f"{source.file.filename}, {source.git.url} at {source.git.commit}"
    return Missing(name, source.file.sha256, tried, (error and error.fix) or "run this where that host can be reached")
