"""The file tree under a venv as sandboxes see it, and the Python that builds sdists in it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.interpreter import unpack
from imagegen.lock.foundation import BUILD_PLATFORM
from imagegen.lock.interpreter import LockedInterpreter, directory, interpreter_key, own_python
from imagegen.lock.model import Foundation, Lock, LockedBase
from imagegen.lock.sdist import SdistBuilder
from imagegen.lock.sources import fetch_interpreter
from imagegen.oci.documents import PLATFORMS, LayerDescriptor, digest_of

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
    below: Foundation, context: Context, prebuilt: base.PrebuiltBase | None, program: str | None = None
) -> Path:
    """The tree of base and packages. Raises BaseError where it has no `program`."""
    added = below.added
    if added is None:
        return base.rootfs(below.base, context, prebuilt, program)

    def layers() -> Iterator[LayerDescriptor]:
        if prebuilt:
            try:
                yield from prebuilt.fetch(context.store, context.progress)
            except FetchError as error:
                context.progress.say(f"note: the base and its packages are made here: {error.summary}")
            else:
                return
        yield from _bottom_layers(below, context)[0]
        yield packages_layer(below, context)

    return base.merged_tree(bottom_key(below), layers(), program, context.store, context.progress)


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
