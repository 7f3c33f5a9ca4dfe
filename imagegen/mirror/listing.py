"""List the files of locks for a mirror, and fetch them into the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from imagegen.core.context import Context
from imagegen.core.store import Store
from imagegen.image import base, inputs
from imagegen.image.base.fetch import PACKAGES, listing
from imagegen.lock import fetch_sources, foundation, inputs_hash
from imagegen.lock.model import LOCAL, Lock, LockedFile, LockedWheel
from imagegen.oci.documents import (
    Descriptor,
)
from imagegen.spec.recipe import Recipe

FILES = "application/vnd.imagegen.mirror.files.v1"  # artifact that lists the files of a lock
_FILE = "application/vnd.imagegen.mirror.file.v1"


@dataclass(frozen=True)
class MirrorArtifact:
    """An artifact of a mirror, with its name, its type, and its files by name."""

    name: str
    kind: str
    files: tuple[tuple[str, Descriptor], ...]  # sorted by digest, each once


def collect(locked: Lock, recipes: Mapping[str, Recipe], context: Context) -> None:
    """Fetch all files of `listings` into the store. `recipes` are the cell's, by package.

    Raises the errors of `lock.fetch`, `lock.fetch_sources` and `base.fetch`.
    """
    inputs.fetch(replace(locked, wheels=(locked.uv, *_indexed(locked))), context)
    if locked.builds:
        fetch_sources(locked.builds, recipes, context)
    if _from_sdists(locked):
        inputs.fetch_parts(locked, context)
    foundation.fetch(locked.interpreter, context)
    base.fetch_files(locked.base, context)
    if locked.added:
        base.fetch_packages(locked.added, context)
    if locked.bytecode_base:
        base.fetch_files(locked.bytecode_base, context)


def listings(locked: Lock, store: Store) -> tuple[MirrorArtifact, ...]:
    """Return the artifacts of a mirror for a lock. Debian packages are separate, because they are trusted more.

    The files must be in the store, because a lock does not have the size of an interpreter's archive or of all wheels.
    """
    files = _files(locked, store)
    if archive := locked.interpreter.file:
        files[archive.digest] = (archive.filename, store.path(archive.digest).stat().st_size)
    name = f"{locked.cell}-{inputs_hash(locked).removeprefix('sha256:')[:12]}"
    artifacts = [MirrorArtifact(name, FILES, _sorted(files))]
    for locked_packages in (locked.base, locked.added, locked.bytecode_base):
        if locked_packages and locked_packages.debs:
            packages = {deb.digest: (deb.path.rpartition("/")[2], deb.size) for deb in locked_packages.debs}
            artifacts.append(MirrorArtifact(listing(locked_packages.debs), PACKAGES, _sorted(packages)))
    return tuple(artifacts)


def _files(locked: Lock, store: Store) -> dict[str, tuple[str, int]]:
    """Return digest -> name and size in bytes of all files but Debian packages.

    The project's packages are not mirrored, since a build takes them from the project. The contents of its copied files
    and patches are mirrored, for a rebuild on another machine.
    """
    sdists = [wheel.sdist for wheel in _from_sdists(locked) if wheel.sdist]
    wheels = [locked.uv, *_indexed(locked)]
    files = [wheel.fetched for wheel in wheels] + [sdist.file for sdist in sdists if sdist.file.index != LOCAL]
    files += [wheel.file for sdist in sdists for wheel in sdist.build_requires]
    files += [wheel.file for build in locked.builds for wheel in build.build_requires]
    files += [build.source for build in locked.builds if build.source.index != LOCAL]
    sizes = {file.digest: (file.filename, file.size or _size(file, store)) for file in files}
    sizes |= {
        project_file.digest: (project_file.path.rpartition("/")[2], project_file.size)
        for project_file in inputs.project_files(locked)
    }
    layers = enumerate(locked.base.content.layers, 1) if locked.base.content else ()
    return sizes | {layer.digest: (f"base-layer-{number}", layer.size) for number, layer in layers}


def _size(file: LockedFile, store: Store) -> int:
    """Return the size in bytes of a file in the store whose size the lock does not name."""
    return store.path(file.digest).stat().st_size


def _from_sdists(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if wheel.sdist]


def _indexed(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if not (wheel.sdist or wheel.build or wheel.file.index == LOCAL)]


def _sorted(files: Mapping[str, tuple[str, int]]) -> tuple[tuple[str, Descriptor], ...]:
    return tuple((name, Descriptor(_FILE, digest, size)) for digest, (name, size) in sorted(files.items()))
