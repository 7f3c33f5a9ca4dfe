"""Write the folder that a plain `docker buildx build` needs, and docker-bake.json next to such folders.

Source of the format: Docker's Bake file reference (JSON; `${NAME}` is a variable, which the environment may set).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagegen.checks import WORKER
from imagegen.checks.worker.source import PATCHED
from imagegen.core import data
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import Location, StoreError
from imagegen.core.store import Store, disk, images
from imagegen.image import inputs, layers
from imagegen.image.base import fetch_packages
from imagegen.image.dockerfile import OUTPUT, Rendered, spec
from imagegen.image.layers.support import ROOT, support_files
from imagegen.lock.artifacts import plan_package
from imagegen.lock.build_sources import fetch_sources, patched_sources
from imagegen.lock.model import Lock, LockedBuild, LockedCopy, LockedFile
from imagegen.spec.recipe import Recipe


def write(rendered: Rendered, locked: Lock, recipes: Mapping[str, Recipe], directory: Path, context: Context) -> None:
    """Write Dockerfile, base/ (an OCI layout), wheels/, support/, packages/ and builds/ where there are some.

    The directory is new; packages are above the base, and the Dockerfile installs them.

    All is fetched before anything is written, and the directory appears complete or not at all. Raises StoreError when
    it exists and is not empty; FetchError, BaseError and LockError as the build does.
    """
    images.require_new(directory)
    inputs.fetch(replace(locked, wheels=rendered.wheels), context)
    if locked.builds:
        fetch_sources(locked.builds, recipes, context)
    if locked.added:
        fetch_packages(locked.added, context)
    base = layers.assemble_base(replace(locked, added=None), context)
    with images.filling(directory) as fresh:
        images.export(context.store, base.digest, fresh / "base", "latest")
        folder = fresh / "wheels"
        folder.mkdir()
        for wheel in rendered.wheels:
            _place(context.store, wheel.file.digest, folder / wheel.file.filename)
        if added := locked.foundation.added:
            (fresh / "packages").mkdir()
            for deb in added.debs:
                _place(context.store, deb.digest, fresh / "packages" / f"{deb.name}.deb")
        if locked.builds:
            write_builds(locked.builds, recipes, fresh / "builds", context.store, context.settings)
        write_support(locked, fresh / "support")
        for copy in locked.copies:
            _write_copy(copy, fresh / "files", context.store)
        (fresh / "Dockerfile").write_text(rendered.dockerfile, encoding="utf-8")


def write_builds(
    builds: Iterable[LockedBuild], recipes: Mapping[str, Recipe], directory: Path, store: Store, settings: Settings
) -> None:
    """Write the worker, and for each build its description, source, patched files and build requirements.

    `recipes` are by package. All that they begin with must be in the store: `lock.build_sources` brings it. Raises
    StoreError, and BuildError for sources that a patch does not fit.
    """
    directory.mkdir()
    for path in sorted(WORKER.rglob("*.py")):
        target = directory / "worker" / path.relative_to(WORKER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for build in builds:
        recipe, folder = recipes[build.name], directory / build.name
        folder.mkdir()
        for file in plan_package(build).of_kind(LockedFile):
            _place(store, file.digest, folder / file.filename)
        if build.patches:
            with patched_sources(build, store, settings) as (sources, paths):
                for path in paths:
                    target = folder / PATCHED / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(sources / path, target)
        (folder / "spec.json").write_text(json.dumps(spec(build, recipe), indent=2) + "\n", encoding="utf-8")
    for path in (directory, *directory.rglob("*")):  # BuildKit's caches know modes, and the umask decides none of them
        if path.is_dir():
            path.chmod(0o755)
        elif path.stat().st_nlink == 1:  # a linked file is the store's, and read-only
            path.chmod(0o555 if path.stat().st_mode & 0o100 else 0o444)


def _place(store: Store, digest: str, target: Path) -> None:
    """Put a blob of the store at `target`, as a hard link where the disk allows."""
    store.verify(digest)
    try:
        os.link(store.path(digest), target)
    except OSError:
        shutil.copyfile(store.path(digest), target)


def _write_copy(copy: LockedCopy, directory: Path, store: Store) -> None:
    """Write the files of a copy, whose contents are in the store, with the modes that they have in the image."""
    for file in copy.files:
        path = directory / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        store.verify(file.digest)
        shutil.copyfile(store.path(file.digest), path)
        path.chmod(int(file.mode, 8))
    for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        path.chmod(0o755)


def write_support(locked: Lock, directory: Path) -> None:
    """Write the files of the support layer, with the modes that COPY gives them in the image, whatever the umask."""
    for file in support_files(locked):
        path = directory / Path(file.path).relative_to(ROOT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)
    for path in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        path.chmod(0o755)


FILE = "docker-bake.json"
_CA = "SSL_CERT_FILE"


def bake(targets: Mapping[str, Rendered]) -> dict[str, Any]:
    """Return the bake file for folders below its own; `targets` is by folder. The group `default` is all of them."""
    return {
        "variable": {_CA: {"default": "/dev/null"}},
        "group": {"default": {"targets": sorted(map(_name, targets))}},
        "target": {_name(folder): _target(folder, targets[folder]) for folder in sorted(targets)},
    }


def write_bake(directory: Path, targets: Mapping[str, Rendered]) -> None:
    """Write the bake file of `directory`. Targets that an earlier call wrote stay as long as their folders are there.

    Raises StoreError when it cannot be written, or what is there is no bake file.
    """
    path = directory / FILE
    document = bake(targets)
    earlier_targets = {
        name: target
        for name, target in _before(path).items()
        if name not in document["target"] and (directory / target["context"]).is_dir()
    }
    document["target"] = dict(sorted((earlier_targets | document["target"]).items()))
    document["group"]["default"]["targets"] = list(document["target"])
    with disk.explained(directory, "the output directory", "name another one", 0):
        data.write(path, json.dumps(document, indent=2).encode() + b"\n")


def _name(folder: str) -> str:
    """Names of targets know no dots."""
    return folder.replace(".", "_")


def _target(folder: str, rendered: Rendered) -> dict[str, Any]:
    context = f"./{folder}"
    return {
        "context": context,
        "contexts": {name: path.replace("./", f"{context}/") for name, path in rendered.contexts.items()},
        "secret": [f"id=ca,src=${{{_CA}}}"],
        "tags": [rendered.tag],
        "attest": ["type=provenance,disabled=true"],  # it would move the digest on every build
        "output": [OUTPUT],
    }


def _before(path: Path) -> dict[str, Any]:
    try:
        targets: dict[str, Any] = json.loads(data.read(path))["target"]
        return {name: target for name, target in targets.items() if isinstance(target["context"], str)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            "the existing file is not a bake file of imagegen",
            code="store-foreign-file",
            where=Location(path),
            why=str(error),
            fix="move it away",
        ) from error
