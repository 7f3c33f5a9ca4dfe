"""The folder beside a rendered Dockerfile: all that a plain `docker buildx build` needs, and nothing of imagegen."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from imagegen import layers, lock
from imagegen.config import Settings
from imagegen.lock.model import Lock
from imagegen.progress import Progress
from imagegen.recipe.dockerfile import Rendered
from imagegen.store import Store, refs


def write(
    rendered: Rendered, locked: Lock, directory: Path, store: Store, settings: Settings, progress: Progress
) -> None:
    """Write Dockerfile, base/ (an OCI layout) and wheels/ to a new directory.

    Raises StoreError when the directory is not empty; FetchError and BaseError as the build does.
    """
    refs.require_new(directory)
    lock.fetch(replace(locked, wheels=rendered.wheels), store, settings, progress)
    base = layers.assemble_base(locked, store, settings, progress)
    refs.export(store, base.digest, directory / "base", "latest")
    wheels = directory / "wheels"
    wheels.mkdir()
    for wheel in rendered.wheels:
        store.verify(wheel.file.digest)
        source, target = store.path(wheel.file.digest), wheels / wheel.file.filename
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
    (directory / "Dockerfile").write_text(rendered.dockerfile, encoding="utf-8")
