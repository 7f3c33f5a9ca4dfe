"""A base's file tree, unpacked in the store: what sandboxes have as their root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from imagegen.base.build import build
from imagegen.base.model import LockedBase
from imagegen.config import Settings
from imagegen.errors import BaseError
from imagegen.progress import Progress, timed
from imagegen.store import Store


def rootfs(locked: LockedBase, store: Store, settings: Settings, progress: Progress) -> Path:
    """The unpacked base, built first where needed. All files belong to the caller; none is set-user-id.

    The tree gets its name when it is complete, and is made again when its interpreter is missing. Raises as `build`
    does, and BaseError when it cannot be unpacked.
    """
    layer = build(locked, store, settings, progress)
    name = layer.diff_id.removeprefix("sha256:")
    tree = store.root / "rootfs" / name
    with store.lock(f"rootfs-{name}"):
        if store.use(tree) is None or not (tree / locked.interpreter.lstrip("/")).is_file():
            with timed(progress, f"unpacking base {locked.name}"):
                shutil.rmtree(tree, ignore_errors=True)
                _unpack(store, layer.diff_id, tree)
    return tree


def _unpack(store: Store, diff_id: str, tree: Path) -> None:
    command = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", "--file=-"]
    # What tar says goes to memory: it has a complaint for each file, which a pipe cannot hold while we write to it.
    with store.room("rootfs") as work, open(os.memfd_create("stderr"), "w+b") as stderr:
        work.chmod(0o755)
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
            raise BaseError("the base cannot be unpacked", where=str(work), why=why[-2000:])
        os.utime(work)  # the archive's own root is old, and would be collected
        # After a power failure a tree that has its name must have its contents.
        subprocess.run(["sync", "--file-system", "."], cwd=work, check=True)
        work.rename(tree)
