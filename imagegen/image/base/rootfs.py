"""A base's file tree, unpacked in the store: what sandboxes have as their root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagegen.core.config import Settings
from imagegen.core.errors import BaseError
from imagegen.core.progress import Progress, timed
from imagegen.core.registry import Layer
from imagegen.core.store import Store
from imagegen.image.base import image
from imagegen.image.base.build import build, key, needed
from imagegen.image.base.unpack import inside, unpack
from imagegen.plan.lock.base import LockedBase

Bring = Callable[[Layer], Layer]  # puts a layer's blob into the store; returns it as it is there, however compressed


@dataclass(frozen=True)
class Made:
    """A base that others have made and the caller believes: its layers from the bottom up, and how to have them."""

    layers: tuple[Layer, ...]
    bring: Bring

    def needed(self) -> int:
        """Bytes, about, that they take in the store with their tree."""
        return (1 + image.UNPACKED) * sum(layer.size for layer in self.layers)


def rootfs(
    locked: LockedBase,
    store: Store,
    settings: Settings,
    progress: Progress,
    made: Made | None = None,
    program: str | None = None,
) -> Path:
    """The unpacked base, built first where needed. All files belong to the caller; none is set-user-id.

    Where the store would have to build or fetch it, and it is `made` already, that one's layers are brought and
    unpacked, held to their digests and diff_ids. The tree gets its name when it is complete, and is made again when
    `program`, an absolute path, is missing in it. Raises as `build`, `image.fetch` and `made.bring` do, and BaseError
    when it cannot be unpacked or has no `program`.
    """
    theirs = made if made and needed(locked, store) else None
    if theirs:
        name = (key(locked) if locked.content else theirs.layers[0].diff_id).removeprefix("sha256:")
    elif locked.content:
        image.fetch(locked, store, settings, progress)
        name = key(locked).removeprefix("sha256:")
    else:
        name = build(locked, store, settings, progress).diff_id.removeprefix("sha256:")
    tree = store.root / "rootfs" / name
    with store.lock(f"rootfs-{name}"):
        if store.use(tree) is None or not _has(tree, program):
            with timed(progress, f"unpacking base {locked.name}"):
                shutil.rmtree(tree, ignore_errors=True)
                _unpack(locked, store, tree, theirs)
        if not _has(tree, program):
            raise BaseError(
                f"base {locked.name} has no {program}",
                code="base-program-absent",
                why="its files hold none",
                fix="name a standalone interpreter (`interpreter:` of the image), or choose a base that has it",
            )
    return tree


def merged_tree(
    key: str, layers: Callable[[], Sequence[Layer]], program: str | None, store: Store, progress: Progress
) -> Path:
    """Return the tree of several layers, from the bottom up, unpacked in the store under `key`.

    `layers` brings them into the store. Files are as those of `rootfs`; raises as it does.
    """
    name = key.removeprefix("sha256:")
    tree = store.root / "rootfs" / name
    with store.lock(f"rootfs-{name}"):
        if store.use(tree) is None or not _has(tree, program):
            shutil.rmtree(tree, ignore_errors=True)
            found = layers()
            with timed(progress, f"unpacking {len(found)} layers"), store.room("rootfs") as work:
                work.chmod(0o755)
                unpack(found, store, work)
                keep(work, tree)
        if not _has(tree, program):
            fix = "name a standalone interpreter (`interpreter:` of the image), or a package that brings it"
            raise BaseError(
                f"base and packages have no {program}", code="base-program-absent", why="their files hold none", fix=fix
            )
    return tree


def _has(tree: Path, program: str | None) -> bool:
    return tree.is_dir() and (program is None or inside(tree, program).is_file())


def _unpack(locked: LockedBase, store: Store, tree: Path, made: Made | None) -> None:
    with store.room("rootfs") as work:
        work.chmod(0o755)
        if made:
            unpack([replace(made.bring(layer), diff_id=layer.diff_id) for layer in made.layers], store, work)
        elif locked.content:
            unpack(locked.content.layers, store, work)
        else:
            _unpack_own(store, f"sha256:{tree.name}", work)
        keep(work, tree)


def keep(work: Path, tree: Path) -> None:
    """Give a tree that is complete its name: after a power failure what has it must have its contents."""
    os.utime(work)  # an archive's own root is old, and would be collected
    subprocess.run(["sync", "--file-system", "."], cwd=work, check=True)
    work.rename(tree)


def _unpack_own(store: Store, diff_id: str, work: Path) -> None:
    """A tar that `build` has normalised."""
    command = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", "--file=-"]
    # What tar says goes to memory: it has a complaint for each file, which a pipe cannot hold while we write to it.
    with open(os.memfd_create("stderr"), "w+b") as stderr:
        with subprocess.Popen(
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
