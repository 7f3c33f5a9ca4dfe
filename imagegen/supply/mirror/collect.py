"""Lock -> the files that a build of it begins with, in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from imagegen.core.config import Settings
from imagegen.core.progress import Progress
from imagegen.core.registry.image import Descriptor
from imagegen.core.store import Store
from imagegen.image import base, inputs
from imagegen.image.base.fetch import PACKAGES, listing
from imagegen.plan.lock import fetch_sources, inputs_hash, interpreters
from imagegen.plan.lock.model import LOCAL, File, Lock, LockedWheel
from imagegen.plan.matrix.recipe import Recipe

FILES = "application/vnd.imagegen.mirror.files.v1"  # artifact that lists what a lock names
_FILE = "application/vnd.imagegen.mirror.file.v1"


@dataclass(frozen=True)
class Listing:
    """An artifact to be: its name in the mirror, its type, and its files by what they are called."""

    name: str
    kind: str
    files: tuple[tuple[str, Descriptor], ...]  # sorted by digest, each once


def collect(locked: Lock, recipes: Mapping[str, Recipe], store: Store, settings: Settings, progress: Progress) -> None:
    """Bring all that `listings` names into the store. Raises as `lock.fetch`, `lock.fetch_sources` and base.fetch do.

    `recipes` are the cell's, by package.
    """
    inputs.fetch(replace(locked, wheels=(locked.uv, *_indexed(locked))), store, settings, progress)
    if locked.builds:
        fetch_sources(locked.builds, recipes, store, settings, progress)
    if _made(locked):
        inputs.fetch_parts(locked, store, settings, progress)
    interpreters.fetch(locked.interpreter, store, settings, progress)
    base.fetch_files(locked.base, store, settings, progress)
    if locked.added:
        base.fetch_packages(locked.added, store, settings, progress)


def listings(locked: Lock, store: Store) -> tuple[Listing, ...]:
    """Return the content of a mirror for a lock: its files, and separately its Debian packages, which are trusted more.

    All of it is in the store: a lock does not have the size of an interpreter's archive, or of all wheels.
    """
    files = _files(locked, store)
    if archive := locked.interpreter.file:
        files[archive.digest] = (archive.filename, store.path(archive.digest).stat().st_size)
    name = f"{locked.cell}-{inputs_hash(locked).removeprefix('sha256:')[:12]}"
    found = [Listing(name, FILES, _sorted(files))]
    for debs in (locked.base.debs, locked.added.debs if locked.added else ()):
        if debs:
            packages = {deb.digest: (deb.path.rpartition("/")[2], deb.size) for deb in debs}
            found.append(Listing(listing(debs), PACKAGES, _sorted(packages)))
    return tuple(found)


def _files(locked: Lock, store: Store) -> dict[str, tuple[str, int]]:
    """Return digest -> name and size in bytes of all files but Debian packages; files from a local disk are not
    mirrored.
    """
    sdists = [wheel.sdist for wheel in _made(locked) if wheel.sdist]
    wheels = [locked.uv, *_indexed(locked)]
    files = [wheel.file for wheel in wheels] + [sdist.file for sdist in sdists]
    files += [needed.file for sdist in sdists for needed in sdist.build_requires]
    files += [needed.file for build in locked.builds for needed in build.build_requires]
    files += [build.source for build in locked.builds if build.source.index != LOCAL]
    found = {file.digest: (file.filename, file.size or _size(file, store)) for file in files}
    layers = enumerate(locked.base.content.layers, 1) if locked.base.content else ()
    return found | {layer.digest: (f"base-layer-{number}", layer.size) for number, layer in layers}


def _size(file: File, store: Store) -> int:
    """The size in bytes of a file that the store has and whose size the lock does not name."""
    return store.path(file.digest).stat().st_size


def _made(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if wheel.sdist]


def _indexed(locked: Lock) -> list[LockedWheel]:
    return [wheel for wheel in locked.wheels if not wheel.sdist and not wheel.build]


def _sorted(files: Mapping[str, tuple[str, int]]) -> tuple[tuple[str, Descriptor], ...]:
    return tuple((name, Descriptor(_FILE, digest, size)) for digest, (name, size) in sorted(files.items()))
