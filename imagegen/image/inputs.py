"""List and fetch the files that a lock names, by hash, and build its sdists."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, ReproducibilityError
from imagegen.core.net import Client, Missing, MissingFiles
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image import base
from imagegen.image.file_tree import bottom_key, bytecode_base, sdist_builder, tree_key
from imagegen.lock import patched, sdist
from imagegen.lock.artifacts import locked_files, plan
from imagegen.lock.foundation import LockedDeb
from imagegen.lock.model import LOCAL, CopiedFile, Lock, LockedFile, LockedPatch, LockedWheel, WheelPatch
from imagegen.lock.sources import Finder, RequiredFile, fetch_commit, in_parallel, mirrored, missing, missing_commit
from imagegen.oci.documents import LayerDescriptor


def contents(lock: Lock) -> dict[str, str]:
    """Return digest -> description of everything that a store keeps for the lock, packed and unpacked."""
    image = plan(lock)
    descriptions = {digest: file.filename for digest, file in locked_files([image]).items()}
    descriptions |= {patch.digest: patch.filename for patch in image.of_kind(LockedPatch)}
    descriptions |= {file.digest: file.path for file in project_files(lock)}
    descriptions |= {deb.digest: f"Debian package {deb.name} {deb.version}" for deb in image.of_kind(LockedDeb)}
    below = lock.foundation
    if below.interpreter.file or below.added:
        descriptions[tree_key(below)] = f"the tree under the stack of {lock.cell}, unpacked"
    if below.added:
        descriptions[bottom_key(below)] = f"base {lock.base.name} with packages, unpacked"
    if lock.base.content:
        descriptions[base.key(lock.base)] = f"base {lock.base.name}, unpacked"
    for number, base_layer in enumerate(image.of_kind(LayerDescriptor), 1):
        descriptions[base_layer.digest] = f"layer {number} of {lock.base.image}"
    for layer in lock.record.layers if lock.record else ():
        descriptions |= {layer.digest: f"layer {layer.name}", layer.diff_id: f"layer {layer.name}, unpacked"}
    return descriptions


def project_files(lock: Lock) -> list[CopiedFile | WheelPatch]:
    """Return the files of the project whose contents the lock pins: copied ones, and patches of wheels."""
    image = plan(lock)
    return [*image.of_kind(CopiedFile), *image.of_kind(WheelPatch)]


def fetch(lock: Lock, context: Context, *, make: bool = True) -> None:
    """Bring every wheel of the lock into the store, or the files that it is made of. Raises as `fetch_each`."""
    for _ in fetch_each(lock, context, make=make):
        pass


def fetch_copies(lock: Lock, context: Context) -> None:
    """Bring the contents of the project's copied files into the store. Raises MissingFiles, FetchError, StoreError."""
    if gone := _missing_here([file for copy in lock.copies for file in copy.files], context):
        raise MissingFiles(gone, context.store.root)


def _missing_here(files: Iterable[CopiedFile | WheelPatch], context: Context) -> list[Missing]:
    """Return the files of the project that are neither in the store, into which a command in the project brings them,
    nor in a mirror.
    """
    gone = [file for file in files if not context.store.has(file.digest, file.size)]
    gone = [file for file in gone if not mirrored(LockedFile(file.path, file.size, file.sha256, LOCAL), context)]
    fix = "run this in the project, or name a mirror that has its files"
    return [Missing(file.path, file.sha256, ("the store lacks it",), fix) for file in gone]


def fetch_each(
    lock: Lock, context: Context, rootfs: Future[Path] | None = None, *, make: bool = True
) -> Generator[LockedWheel]:
    """Yield each wheel of the lock when it is in the store, present ones first, then the others in the lock's
    order.

    If not `make`, the files that wheels are made of are fetched, and no wheel is made of them.
    `rootfs` is the tree under the venv, if the caller builds it anyway. Raises MissingFiles at the end, naming
    all files that could not be fetched and every source that was tried for each.
    """
    absent: list[LockedWheel] = []
    for wheel in lock.wheels:
        if make and context.store.intact(
            wheel.file.digest, wheel.file.size
        ):  # else a bad disk would be taken for a bad wheel
            yield wheel
        else:
            absent.append(wheel)
    if not absent:
        return
    workshop = sdist_builder(lock.foundation, context)
    if rootfs:
        workshop = replace(workshop, rootfs=rootfs.result)
    files = [required.file for wheel in absent for required in RequiredFile.of(wheel)]
    verb = "building" if make and all(context.store.has(file.digest, file.size) for file in files) else "fetching"
    total = sum(file.estimate for file in files)
    with (
        Client(context.settings) as client,
        context.progress.meter(f"{verb} {counted(len(absent), 'wheel')}", total) as meter,
    ):
        finder = Finder(client, context.store, context.settings, meter)
        yield from in_parallel(
            [partial(_obtain, wheel, finder, workshop, context.settings, make) for wheel in absent], client
        )


def complete(error: MissingFiles, lock: Lock, store: Store) -> MissingFiles:
    """Extend `error` by all other files that the store lacks: wheels, sdists, build requirements, Debian packages,
    commits.

    A build ends at its first missing file; with this, a machine without network reports the whole list at once.
    """
    wheels = [wheel for wheel in lock.wheels if not store.has(wheel.file.digest)]
    required_files = (file for wheel in wheels for file in RequiredFile.of(wheel))
    lacking = [missing(file) for file in required_files if not store.has(file.file.digest)]
    lacking += [missing_commit(wheel) for wheel in wheels if wheel.git and not store.has(wheel.source.digest)]
    if (archive := lock.interpreter.file) and not store.has(archive.digest):
        lacking.append(missing(RequiredFile(lock.interpreter.name, archive.locked_file)))
    lacking += base.missing(lock.base, store)
    if lock.added:
        lacking += base.missing_packages(lock.added, base.key(lock.base), store)
    if other := bytecode_base(lock):
        lacking += base.missing(other, store)
    return error.also(lacking)


def _bring(wheel: LockedWheel, finder: Finder, workshop: sdist.SdistBuilder, settings: Settings) -> None:
    """Fetch all files that this wheel is made of. Raises MissingFiles with all that could not be fetched."""
    lacking: MissingFiles | None = None
    context = Context(workshop.store, settings, workshop.progress)
    try:
        fetch_commit(wheel, context)
    except MissingFiles as error:
        lacking = error
    except FetchError as error:
        lacking = MissingFiles([missing_commit(wheel, error)], workshop.store.root)
    for required in RequiredFile.of(wheel):
        try:
            finder.fetch(required)
        except MissingFiles as error:
            lacking = lacking.also(error.files) if lacking else error
    if gone := _missing_here(wheel.patches, context):
        lacking = lacking.also(gone) if lacking else MissingFiles(gone, workshop.store.root)
    if lacking:
        raise lacking


def _obtain(
    wheel: LockedWheel, finder: Finder, workshop: sdist.SdistBuilder, settings: Settings, make: bool
) -> LockedWheel:
    _bring(wheel, finder, workshop, settings)
    if not make:
        return wheel
    if wheel.original:
        wheel_file = patched.build(wheel.original, wheel.patches, workshop.store, settings)
        if wheel_file != wheel.file:
            raise ReproducibilityError(
                f"{wheel.file.filename} with its patches is not the wheel that the lock names",
                code="not-reproducible-patch",
                why=f"expected sha256 {wheel.file.sha256}, got {wheel_file.sha256}",
                fix="use the imagegen that wrote the lock, or lock again",
            )
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
