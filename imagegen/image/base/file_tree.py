"""A base's file tree, unpacked in the store as the root of sandboxes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagegen.core import programs
from imagegen.core.context import Context
from imagegen.core.errors import BaseError, FetchError
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.image.base import registry_image
from imagegen.image.base.debian import build, key
from imagegen.image.base.unpack import inside, unpack
from imagegen.lock.foundation import LockedBase
from imagegen.oci.documents import LayerDescriptor
from imagegen.oci.registry import Repository


@dataclass(frozen=True)
class PrebuiltBase:
    """A base, with the packages added to it, from a trusted source: its layers from the bottom up, in `repository`."""

    layers: tuple[LayerDescriptor, ...]
    repository: Repository

    def fetch(self, store: Store, progress: Progress) -> tuple[LayerDescriptor, ...]:
        """Download the layers into the store, verified, and return them. Raises FetchError, StoreError."""
        for layer in self.layers:
            with progress.meter("fetching a layer of the base", layer.size) as meter:
                self.repository.download(layer.digest, layer.size, store, meter)
        return self.layers

    def required_bytes(self) -> int:
        """Estimate the bytes that the layers and their file tree take in the store."""
        return (1 + registry_image.UNPACKED) * sum(layer.size for layer in self.layers)


def rootfs(
    locked: LockedBase, context: Context, prebuilt: PrebuiltBase | None = None, program: str | None = None
) -> Path:
    """Return the unpacked base, built first where needed. All files belong to the caller; none is set-user-id.

    The layers of `prebuilt` are downloaded and verified by digest and diff_id; without them, or if that fails, the base
    is built or fetched. The tree gets its name when it is complete, and is unpacked again when `program`, an absolute
    path, is missing in it. Raises as `build` and `registry_image.fetch` do, and BaseError when the base cannot be
    unpacked or has no `program`.
    """
    if prebuilt:
        try:
            return _rootfs(locked, context, prebuilt, program)
        except FetchError as error:
            context.progress.say(f"note: base {locked.name} is made here: {error.summary}")
    return _rootfs(locked, context, None, program)


def _rootfs(locked: LockedBase, context: Context, prebuilt: PrebuiltBase | None, program: str | None) -> Path:
    if prebuilt:
        name = (key(locked) if locked.content else prebuilt.layers[0].diff_id).removeprefix("sha256:")
    elif locked.content:
        registry_image.fetch(locked, context)
        name = key(locked).removeprefix("sha256:")
    else:
        name = build(locked, context).diff_id.removeprefix("sha256:")
    tree = context.store.root / "rootfs" / name
    with context.store.lock(f"rootfs-{name}"):
        if context.store.use(tree) is None or not _has(tree, program):
            with timed(context.progress, f"unpacking base {locked.name}"):
                shutil.rmtree(tree, ignore_errors=True)
                _unpack(locked, context.store, context.progress, tree, prebuilt)
        if not _has(tree, program):
            raise BaseError(
                f"base {locked.name} has no {program}",
                code="base-program-absent",
                why="its files hold none",
                fix="name a standalone interpreter (`interpreter:` of the image), or choose a base that has it",
            )
    return tree


def merged_tree(
    key: str, layers: Iterable[LayerDescriptor], program: str | None, store: Store, progress: Progress
) -> Path:
    """Return the tree of several layers, from the bottom up, unpacked in the store under `key`.

    Iterating over `layers` brings them into the store. Files and errors are as in `rootfs`.
    """
    name = key.removeprefix("sha256:")
    tree = store.root / "rootfs" / name
    with store.lock(f"rootfs-{name}"):
        if store.use(tree) is None or not _has(tree, program):
            shutil.rmtree(tree, ignore_errors=True)
            descriptors = [*layers]
            with timed(progress, f"unpacking {len(descriptors)} layers"), store.temporary_directory("rootfs") as work:
                work.chmod(0o755)
                unpack(descriptors, store, work)
                keep(work, tree)
        if not _has(tree, program):
            fix = "name a standalone interpreter (`interpreter:` of the image), or a package that brings it"
            raise BaseError(
                f"base and packages have no {program}", code="base-program-absent", why="their files hold none", fix=fix
            )
    return tree


def _has(tree: Path, program: str | None) -> bool:
    return tree.is_dir() and (program is None or inside(tree, program).is_file())


def _unpack(locked: LockedBase, store: Store, progress: Progress, tree: Path, prebuilt: PrebuiltBase | None) -> None:
    with store.temporary_directory("rootfs") as work:
        work.chmod(0o755)
        if prebuilt:
            unpack(prebuilt.fetch(store, progress), store, work)
        elif locked.content:
            unpack(locked.content.layers, store, work)
        else:
            _unpack_own(store, f"sha256:{tree.name}", work)
        keep(work, tree)


def keep(work: Path, tree: Path) -> None:
    """Give a complete tree its name; after a power failure too, a tree with its name must have its contents."""
    os.utime(work)  # an archive's own root is old, and would be collected
    programs.run(["sync", "--file-system", "."], cwd=work).check_returncode()
    work.rename(tree)


def _unpack_own(store: Store, diff_id: str, work: Path) -> None:
    """A tar that `build` has normalised."""
    command = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", "--file=-"]
    # tar's messages go to memory. There may be one for each file, which a pipe cannot hold while we write to it.
    with open(os.memfd_create("stderr"), "w+b") as stderr:
        with programs.Program[bytes](
            command, cwd=work, stdin=subprocess.PIPE, stderr=stderr, umask=0o022, env={"LC_ALL": "C.UTF-8"}
        ) as process:
            assert process.stdin is not None  # noqa: S101 - asked for a pipe
            try:
                with store.open(diff_id) as blob, process.stdin as stdin:
                    for chunk in blob:
                        stdin.write(chunk)
            except BrokenPipeError:
                pass  # tar says why
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            stderr.seek(0)
            why = stderr.read().decode(errors="replace").strip()
            store.blame_disk(why)
            raise BaseError("the base cannot be unpacked", code="base-unpack-failed", where=str(work), why=why[-2000:])
