"""Fetch the files that a lock names, and unpack the tree under the stack."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagegen.artifacts.graph import locked_files, plan
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError, ReproducibilityError
from imagegen.core.net import Client, Missing, MissingFiles
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image import base
from imagegen.image.interpreter import unpack
from imagegen.lock import patched, sdist
from imagegen.lock.foundation import (
    BUILD_PLATFORM,
    LockedDeb,
    LockedInterpreter,
    directory,
    interpreter_key,
    own_python,
)
from imagegen.lock.model import (
    LOCAL,
    CopiedFile,
    Foundation,
    Lock,
    LockedBase,
    LockedFile,
    LockedPatch,
    LockedWheel,
    WheelPatch,
)
from imagegen.lock.sdist import SdistBuilder
from imagegen.lock.sources import (
    Finder,
    RequiredFile,
    fetch_commit,
    fetch_interpreter,
    in_parallel,
    mirrored,
    missing,
    missing_commit,
)
from imagegen.oci.documents import PLATFORMS, LayerDescriptor, digest_of


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


# Bringing all that a lock names into the store: wheels fetched by hash, and those made from their sdists.


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
    lock: Lock, context: Context, rootfs: Callable[[], Path] | None = None, *, make: bool = True
) -> Generator[LockedWheel]:
    """Yield each wheel of the lock when it is in the store, present ones first, then the others in the lock's
    order.

    If not `make`, the files that wheels are made of are fetched, and no wheel is made of them.
    `rootfs` returns the tree under the venv, if the caller builds it anyway. Raises MissingFiles at the end, naming
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
        workshop = replace(workshop, rootfs=rootfs)
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


# The file tree under a venv as sandboxes see it, and the Python that builds sdists in it.

_MERGE_FORMAT = 2  # raise it when `_merge` writes other files
# Debian's multiarch directories (wiki.debian.org/Multiarch/Tuples), which the loader searches without a cache.
_MULTIARCH = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")


def tree_key(below: Foundation) -> str:
    """Return the digest of all that decides the tree, which is the base's key if nothing lies above the base."""
    bottom = bottom_key(below)
    if not below.interpreter.file:
        return bottom
    return digest_of(json.dumps([_MERGE_FORMAT, bottom, interpreter_key(below.interpreter)]).encode())


def bottom_key(below: Foundation) -> str:
    """Return the digest of all that decides base and packages; the packages' key covers the base's."""
    return base.packages_key(below.added, base.key(below.base)) if below.added else base.key(below.base)


def bytecode_base(lock: Lock) -> LockedBase | None:
    """Return the base whose interpreter compiles byte-code on this machine; None if the image's own does."""
    return lock.bytecode_base if PLATFORMS.get(platform.machine()) == BUILD_PLATFORM else None


def packages_layer(below: Foundation, context: Context) -> LayerDescriptor:
    """Return the layer of packages above the base, uncompressed, made where the store lacks it.

    Raises as `base.build_packages` does.
    """
    assert below.added  # noqa: S101 - else there is no such layer
    key = base.key(below.base)
    return base.build_packages(below.added, key, lambda: _bottom_layers(below, context), context)


def _bottom_layers(below: Foundation, context: Context) -> tuple[Sequence[LayerDescriptor], Path]:
    """The base's layers, from the bottom up, and its tree, in the store."""
    root = base.rootfs(below.base, context)
    if content := below.base.content:
        base.fetch_layers(below.base, context)
        return content.layers, root
    return [base.build(below.base, context)], root


def tree(below: Foundation, context: Context, prebuilt: base.PrebuiltBase | None = None) -> Path:
    """Return the file tree of all that lies under the venv, unpacked in the store; no file of it is byte-code of ours.

    `prebuilt` is base and packages from a trusted source, if any. Raises as `base.rootfs` does, MissingFiles, and
    BaseError for an interpreter that cannot be unpacked.
    """
    locked = below.interpreter
    if locked.file is None:
        return _bottom_tree(below, context, prebuilt, locked.path)
    name = tree_key(below).removeprefix("sha256:")
    root = context.store.root / "rootfs" / name
    with context.store.lock(f"rootfs-{name}"):
        if context.store.use(root) is None or not (root / locked.path.lstrip("/")).is_file():
            shutil.rmtree(root, ignore_errors=True)
            bottom = _bottom_tree(below, context, prebuilt)
            fetch_interpreter(locked, context)
            with (
                timed(context.progress, f"unpacking interpreter {locked.name}"),
                context.store.temporary_directory("rootfs") as work,
            ):
                _merge(bottom, locked, context.store, work)
                base.keep(work, root)
    return root


def _bottom_tree(
    below: Foundation,
    context: Context,
    prebuilt: base.PrebuiltBase | None,
    program: str | None = None,
) -> Path:
    """The tree of base and packages. Raises BaseError where it has no `program`."""
    added = below.added
    if added is None:
        return base.rootfs(below.base, context, prebuilt, program)

    def layers() -> Sequence[LayerDescriptor]:
        if prebuilt and not base.packages_built(added, base.key(below.base), context.store):
            try:
                return prebuilt.fetch(context.store, context.progress)
            except FetchError as error:
                context.progress.say(f"note: the base and its packages are made here: {error.summary}")
        bottom, _ = _bottom_layers(below, context)
        return [*bottom, packages_layer(below, context)]

    return base.merged_tree(bottom_key(below), layers, program, context.store, context.progress)


def _merge(bottom: Path, locked: LockedInterpreter, store: Store, work: Path) -> None:
    """Make `work` a copy of the base's tree that shares its files, with the interpreter in its place."""
    assert locked.file  # noqa: S101 - a standalone interpreter has one
    shutil.copytree(bottom, work, symlinks=True, dirs_exist_ok=True, copy_function=os.link)
    work.chmod(0o755)
    home = work / directory(locked).lstrip("/")
    for folder in (home.parent.parent, home.parent):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise BaseError(
                "the base has no place for an interpreter",
                code="base-interpreter-conflict",
                where=f"/{folder.relative_to(work)}",
            )
        folder.mkdir(exist_ok=True)
    if home.exists() or home.is_symlink():
        raise BaseError(
            "the base has something where the interpreter belongs",
            code="base-interpreter-conflict",
            where=directory(locked),
        )
    home.mkdir()
    unpack(locked.file, store, home, directory(locked))
    if not (work / locked.path.lstrip("/")).is_file():
        why = f"its archive holds no {locked.path.removeprefix(directory(locked) + '/')}"
        raise BaseError(
            "the interpreter cannot be unpacked", code="base-interpreter-conflict", where=locked.file.filename, why=why
        )
    if link := libpython_link(work, locked):
        file, target = link
        (work / file).unlink(missing_ok=True)  # of the base's own Python of the same version: a link to its inode
        (work / file).symlink_to(target)


def libpython_link(root: Path, locked: LockedInterpreter) -> tuple[str, str] | None:
    """Return path below `root` and target of the link by which the dynamic loader finds a standalone libpython.

    Extension modules may name libpython as needed (cuda-tile does), which is in no directory that ld.so(8) searches.
    None where the interpreter has none.
    """
    name = f"libpython{locked.path.rpartition('/python')[2]}.so.1.0"
    target = f"{directory(locked)}/lib/{name}"
    folder = next((multiarch for multiarch in _MULTIARCH if (root / multiarch).is_dir()), None)
    return (f"{folder}/{name}", target) if folder and (root / target.lstrip("/")).is_file() else None


def sdist_builder(below: Foundation, context: Context) -> SdistBuilder:
    """Return where sdists become wheels, unpacked when the first one needs it.

    The base's own Python builds them where the base brings one, since a wheel of pure Python is the same whichever
    Python builds it; so a lock for another Python needs no interpreter's archive.
    """
    base_python = own_python(below.base) if below.interpreter.file else None
    return SdistBuilder(
        key=base.key(below.base) if base_python else tree_key(below),
        interpreter=base_python or below.interpreter.path,
        rootfs=lambda: base.rootfs(below.base, context, None, base_python) if base_python else tree(below, context),
        store=context.store,
        progress=context.progress,
    )
