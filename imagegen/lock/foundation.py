"""What lies under a venv as sandboxes see it: the merged file tree, and the Python that builds sdists in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from imagegen import base
from imagegen.config import Settings
from imagegen.errors import BaseError
from imagegen.interpreter import LockedInterpreter, directory, interpreter_key, own_python, unpack
from imagegen.lock import interpreters
from imagegen.lock.model import Foundation
from imagegen.lock.sdist import Workshop
from imagegen.progress import Progress, timed
from imagegen.store import Store, digest_of


def tree_key(below: Foundation) -> str:
    """Return the digest of all that decides the tree: the base's own key where nothing lies above the base."""
    if below.interpreter.file is None:
        return base.key(below.base)
    return digest_of(json.dumps([base.key(below.base), interpreter_key(below.interpreter)]).encode())


def tree(
    below: Foundation, store: Store, settings: Settings, progress: Progress, made: base.Made | None = None
) -> Path:
    """Return the file tree of all that lies under the venv, unpacked in the store; no file of it is byte-code of ours.

    `made` is the base where a trusted image has it. Raises as `base.rootfs` does, MissingFiles, and BaseError for an
    interpreter that cannot be unpacked.
    """
    locked = below.interpreter
    if locked.file is None:
        return base.rootfs(below.base, store, settings, progress, made, locked.path)
    name = tree_key(below).removeprefix("sha256:")
    found = store.root / "rootfs" / name
    with store.lock(f"rootfs-{name}"):
        if store.use(found) is None or not (found / locked.path.lstrip("/")).is_file():
            shutil.rmtree(found, ignore_errors=True)
            bottom = base.rootfs(below.base, store, settings, progress, made)
            interpreters.fetch(locked, store, settings, progress)
            with timed(progress, f"unpacking interpreter {locked.name}"), store.room("rootfs") as work:
                _merge(bottom, locked, store, work)
                os.utime(work)
                subprocess.run(["sync", "--file-system", "."], cwd=work, check=True)
                work.rename(found)
    return found


def _merge(bottom: Path, locked: LockedInterpreter, store: Store, work: Path) -> None:
    """Make `work` a copy of the base's tree that shares its files, with the interpreter in its place."""
    assert locked.file  # noqa: S101 - a standalone interpreter has one
    subprocess.run(["cp", "--recursive", "--link", "--no-dereference", "--", f"{bottom}/.", str(work)], check=True)
    work.chmod(0o755)
    home = work / directory(locked).lstrip("/")
    for folder in (home.parent.parent, home.parent):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise BaseError("the base has no place for an interpreter", where=f"/{folder.relative_to(work)}")
        folder.mkdir(exist_ok=True)
    if home.exists() or home.is_symlink():
        raise BaseError("the base has something where the interpreter belongs", where=directory(locked))
    home.mkdir()
    unpack(locked.file, store, home, directory(locked))
    if not (work / locked.path.lstrip("/")).is_file():
        why = f"its archive holds no {locked.path.removeprefix(directory(locked) + '/')}"
        raise BaseError("the interpreter cannot be unpacked", where=locked.file.filename, why=why)


def workshop_of(below: Foundation, store: Store, settings: Settings, progress: Progress) -> Workshop:
    """Return where sdists become wheels, unpacked when the first one needs it.

    The base's own Python builds them where the base brings one, since a wheel of pure Python is the same whichever
    Python builds it; so a lock for another Python needs no interpreter's archive.
    """
    own = own_python(below.base) if below.interpreter.file else None
    return Workshop(
        key=base.key(below.base) if own else tree_key(below),
        interpreter=own or below.interpreter.path,
        rootfs=lambda: (
            base.rootfs(below.base, store, settings, progress, None, own)
            if own
            else tree(below, store, settings, progress)
        ),
        store=store,
        progress=progress,
    )
