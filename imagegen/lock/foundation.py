"""What lies under a venv as sandboxes see it: the merged file tree, and the Python that builds sdists in it."""

from __future__ import annotations

import json
from pathlib import Path

from imagegen import base
from imagegen.config import Settings
from imagegen.errors import BaseError
from imagegen.interpreter import interpreter_key, own_python
from imagegen.lock.model import Foundation
from imagegen.lock.sdist import Workshop
from imagegen.progress import Progress
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

    `made` is the base where a trusted image has it. Raises as `base.rootfs` does.
    """
    if below.interpreter.file:
        raise BaseError(f"the interpreter {below.interpreter.name} cannot be unpacked")
    return base.rootfs(below.base, store, settings, progress, made, below.interpreter.path)


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
