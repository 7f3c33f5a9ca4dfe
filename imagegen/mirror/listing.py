"""List the files of locks for a mirror, and fetch them into the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from imagegen.core.context import Context
from imagegen.core.store import Store
from imagegen.image import base, inputs
from imagegen.image.base.fetch import PACKAGES, listing
from imagegen.lock import fetch_sources, inputs_hash
from imagegen.lock.artifacts import plan
from imagegen.lock.model import BUILT, LOCAL, Lock, LockedFile
from imagegen.lock.sources import fetch_interpreter
from imagegen.oci.documents import Descriptor, LayerDescriptor
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
    wheels = [wheel for wheel in locked.wheels if wheel.sdist or wheel.file.index not in (LOCAL, BUILT)]
    inputs.fetch(replace(locked, wheels=(locked.uv, *wheels)), context, make=False)
    if locked.builds:
        fetch_sources(locked.builds, recipes, context)
    fetch_interpreter(locked.interpreter, context)
    base.fetch_files(locked.base, context)
    if locked.added:
        base.fetch_packages(locked.added, context)
    if locked.bytecode_base:
        base.fetch_files(locked.bytecode_base, context)


def listings(locked: Lock, store: Store) -> tuple[MirrorArtifact, ...]:
    """Return the artifacts of a mirror for a lock. Debian packages are separate, because they are trusted more.

    The files must be in the store, because a lock does not have the size of an interpreter's archive or of all wheels.
    """
    image = plan(locked)
    named_files = [file for file in image.of_kind(LockedFile) if file.index not in (LOCAL, BUILT)]
    sizes = {file.digest: file.size or store.path(file.digest).stat().st_size for file in named_files}
    files = {file.digest: (file.filename, sizes[file.digest]) for file in named_files}
    # A build takes the project's packages from the project; a rebuild on another machine needs its copies and patches.
    files |= {file.digest: (file.path.rpartition("/")[2], file.size) for file in inputs.project_files(locked)}
    base_layers = enumerate(image.of_kind(LayerDescriptor), 1)
    files |= {layer.digest: (f"base-layer-{number}", layer.size) for number, layer in base_layers}
    name = f"{locked.cell}-{inputs_hash(locked).removeprefix('sha256:')[:12]}"
    artifacts = [MirrorArtifact(name, FILES, _sorted(files))]
    for locked_packages in (locked.base, locked.added, locked.bytecode_base):
        if locked_packages and locked_packages.debs:
            packages = {deb.digest: (deb.path.rpartition("/")[2], deb.size) for deb in locked_packages.debs}
            artifacts.append(MirrorArtifact(listing(locked_packages.debs), PACKAGES, _sorted(packages)))
    return tuple(artifacts)


def _sorted(files: Mapping[str, tuple[str, int]]) -> tuple[tuple[str, Descriptor], ...]:
    return tuple((name, Descriptor(_FILE, digest, size)) for digest, (name, size) in sorted(files.items()))
