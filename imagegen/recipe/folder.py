"""The folder beside a rendered Dockerfile: all that a plain `docker buildx build` needs, and nothing of imagegen."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from imagegen import layers, lock
from imagegen.config import Settings
from imagegen.layers import support
from imagegen.lock.model import Lock
from imagegen.progress import Progress
from imagegen.recipe.dockerfile import Rendered
from imagegen.store import Store, refs


def write(
    rendered: Rendered, locked: Lock, directory: Path, store: Store, settings: Settings, progress: Progress
) -> None:
    """Write Dockerfile, base/ (an OCI layout), wheels/ and support/ to a new directory.

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
    _write_support(locked, directory / "support")
    (directory / "Dockerfile").write_text(rendered.dockerfile, encoding="utf-8")


def _write_support(locked: Lock, directory: Path) -> None:
    """The files of the support layer, with the modes that COPY gives them in the image, whatever the umask."""
    for file in support.files(locked):
        path = directory / Path(file.path).relative_to(support.ROOT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)
    for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        path.chmod(0o755)
