"""Rebuild an image from its lock in an empty store, and compare it with the published one.

The user's store is not used, because its cached results may be the fault. Everything is fetched and built again, except
for the contents of the project's files, which are copied by hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from imagegen.compare.causes import Clue, likely_cause
from imagegen.compare.image_bytes import ReadImage
from imagegen.compare.layer_entries import FileEntry, entries, first_difference
from imagegen.compare.references import ImageLocation
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import parse_json
from imagegen.core.gpu import Gpu
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.image import layers
from imagegen.image.inputs import project_files
from imagegen.image.inventory.layers import Stream
from imagegen.image.inventory.streams import Plain, piped
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import plan
from imagegen.lock.environments import with_locks
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell
from imagegen.wheels.builds.ensure import ensure_wheels, require_wheels


class Level(Enum):
    """The degree of equality, from most to least."""

    MANIFEST = "the same manifest"
    CONTENTS = "the same contents"  # equal config and diff_ids, other compressed bytes
    LAYERS = "the same layers under another config"
    FILES = "the same files at other times"
    DIFFERENT = "other files"


@dataclass(frozen=True)
class Comparison:
    """`digest` is the rebuilt image's; `layer` and `file` are the first that differ, with the likely cause."""

    level: Level
    digest: str
    layer: str | None = None
    file: str | None = None
    fields: tuple[str, ...] = ()
    cause: str | None = None

    @property
    def sentence(self) -> str:
        words = [self.level.value, *([f"first in layer {self.layer}"] if self.layer else [])]
        if self.file:
            words.append(f"{self.file}{' (' + ', '.join(self.fields) + ')' if self.fields else ''}")
        return ": ".join([", ".join(words), *([self.cause] if self.cause else [])])


@contextmanager
def rebuild_image(
    lock: Lock, near: Store, settings: Settings, progress: Progress, cell: Cell | None, gpus: Sequence[Gpu]
) -> Iterator[tuple[Lock, layers.Image, Store]]:
    """Yield the lock with its compiled wheels, its image, and their temporary store, which is next to the store `near`.

    Wheels are compiled with the recipes of `cell`; without one they must be in a wheelhouse. Raises the errors of
    `ensure_wheels` and `layers.assemble`.
    """
    with near.temporary_directory("rebuild") as work_dir:
        store = Store(work_dir / "store")
        _copy_project_files(lock, near, store)
        context = Context(store, replace(settings, store=store.root), progress)
        if cell:
            locks = [ensure_wheels(lock_part, part, gpus, context) for part, lock_part in lock.by_cell(cell)]
        else:
            locks = [require_wheels(environment.lock, context) for environment in lock.environments]
        whole = with_locks(lock, locks)
        yield whole, layers.assemble(whole, context), store


def _copy_project_files(lock: Lock, near: Store, store: Store) -> None:
    """Copy the contents of the project's files that `near` has, because no index or registry has them."""
    for file in project_files(lock):
        if near.has(file.digest, file.size):
            with near.open(file.digest) as source, store.writer() as blob:
                while chunk := source.read(1 << 20):
                    blob.write(chunk)
                blob.commit()


def compare(
    published: ReadImage, source: ImageLocation, client: Client, lock: Lock, rebuilt: layers.Image, store: Store
) -> Comparison:
    """Compare the published image with the image that was rebuilt from its lock, whose layers are in the store.

    The layers of the published image are read from `source` with the client. Raises FetchError, StoreError.
    """
    if published.digest == rebuilt.digest:
        return Comparison(Level.MANIFEST, rebuilt.digest)
    if [layer.diff_id for layer in published.layers] == [layer.diff_id for layer in rebuilt.layers]:
        level = Level.CONTENTS if published.raw == rebuilt.config else Level.LAYERS
        return Comparison(level, rebuilt.digest, cause=_cause_without_files(published, lock, rebuilt))
    if len(published.layers) != len(rebuilt.layers):
        why = f"the published image has {len(published.layers)} layers, and the rebuilt one {len(rebuilt.layers)}"
        names = zip(published.names, (layer.name for layer in rebuilt.layers), strict=False)
        first_name = next((old_name for old_name, new_name in names if old_name != new_name), None)
        return Comparison(Level.DIFFERENT, rebuilt.digest, layer=first_name, cause=why)
    first: Comparison | None = None
    for old, new in zip(published.layers, rebuilt.layers, strict=True):
        if old.diff_id == new.diff_id:
            continue
        with piped(source, old, client) as old_blob, store.open(new.digest) as new_blob:
            result = _compare_layer(new.name, _read_entries(old_blob), _read_entries(new_blob), lock, rebuilt.digest)
        if result.level is Level.DIFFERENT:
            return result
        first = first or result
    return first or Comparison(Level.DIFFERENT, rebuilt.digest)


def _read_entries(blob: Stream) -> list[FileEntry]:
    return list(entries(Plain(blob)))


def _compare_layer(
    name: str, published: list[FileEntry], rebuilt: list[FileEntry], lock: Lock, digest: str
) -> Comparison:
    """Return the first entry that differs in more than its times, else the first that differs in its times."""
    entry, level = first_difference(published, rebuilt, times=False), Level.DIFFERENT
    if entry is None:
        entry, level = first_difference(published, rebuilt), Level.FILES
    if entry is None:
        return Comparison(level, digest, name, cause="another program wrote the tar, with the same entries")
    packages = next((layer.wheels for layer in plan(lock) if layer.name == name), ())
    clue = Clue(name, entry, lock.record.layer_format if lock.record else None, packages)
    return Comparison(level, digest, name, f"/{entry.path.lstrip('./')}", entry.fields, likely_cause(clue))


def _cause_without_files(published: ReadImage, lock: Lock, rebuilt: layers.Image) -> str:
    """Return why the digests of images with the same files differ."""
    if published.raw != rebuilt.config:
        return f"its config differs in {_first_key(parse_json(published.raw), parse_json(rebuilt.config))}"
    kinds = {layer.compression or "nothing" for layer in published.layers}
    if lock.record and lock.record.codec != CODEC:
        return f"its layers were compressed with {lock.record.codec}, the rebuilt ones with {CODEC}"
    return f"its layers are compressed with {', '.join(sorted(kinds))}, the rebuilt ones with {CODEC}"


def _first_key(published: Any, rebuilt: Any, path: str = "") -> str:
    """Return the first difference of two configs, as a path of keys."""
    if isinstance(published, dict) and isinstance(rebuilt, dict):
        for key in sorted(published.keys() | rebuilt.keys()):
            if published.get(key) != rebuilt.get(key):
                return _first_key(published.get(key), rebuilt.get(key), f"{path}.{key}" if path else key)
    return path or "its JSON text"
