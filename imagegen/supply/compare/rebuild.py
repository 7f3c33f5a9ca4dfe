"""Rebuild an image from its lock in an empty store, and compare it with the published one.

The user's store is not used, because its cached results may be the fault: everything is fetched and built again. Only
the contents of the project's files come from it, by hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import parse_json
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.types import Gpu
from imagegen.image import layers
from imagegen.image.inputs import project_files
from imagegen.image.inventory.archive import Plain
from imagegen.image.inventory.layers import Stream
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.plan import plan
from imagegen.plan.lock.environments import environments, parts, with_locks
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.supply.compare.contents import FileEntry, Pair, ReadImage, entries, first_difference
from imagegen.supply.compare.wording import Clue, likely_cause
from imagegen.wheels.builds.compile import ensure_wheels, require_wheels

Opened = Callable[[str, int], AbstractContextManager[Stream]]  # a blob by digest and size in bytes


class Level(Enum):
    """The degree of equality; the most first."""

    MANIFEST = "the same manifest"
    CONTENTS = "the same contents"  # equal config, so equal diff_ids: compressed otherwise
    LAYERS = "the same layers under another config"
    FILES = "the same files at other times"
    DIFFERENT = "other files"


@dataclass(frozen=True)
class Comparison:
    """`digest` is of the image that was made again; the first layer and file that differ, and the likely cause."""

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
    """Yield the lock with its compiled wheels, its image, and the temporary store beside `near` that holds both.

    Wheels are compiled with the recipes of `cell`; without one they must be in a wheelhouse. Raises as
    `ensure_wheels` and `layers.assemble`.
    """
    with near.temporary_directory("rebuild") as work_dir:
        store = Store(work_dir / "store")
        _copy_project_files(lock, near, store)
        context = Context(store, replace(settings, store=store.root), progress)
        if cell:
            locks = [ensure_wheels(each, part, gpus, context) for part, each in parts(cell, lock)]
        else:
            locks = [require_wheels(environment.lock, context) for environment in environments(lock)]
        whole = with_locks(lock, locks)
        yield whole, layers.assemble(whole, context), store


def _copy_project_files(lock: Lock, near: Store, store: Store) -> None:
    """Copy the contents of the project's files, as far as `near` has them: no index or registry does."""
    for file in project_files(lock):
        if near.has(file.digest, file.size):
            with near.open(file.digest) as source, store.writer() as blob:
                while chunk := source.read(1 << 20):
                    blob.write(chunk)
                blob.commit()


def compared(found: ReadImage, lock: Lock, made: layers.Image, there: Opened, here: Opened) -> Comparison:
    """The published image beside the one that was made again of its lock, realised. Raises FetchError, StoreError."""
    if found.digest == made.digest:
        return Comparison(Level.MANIFEST, made.digest)
    published = [layer.diff_id for layer in found.layers]
    if published == [layer.diff_id for layer in made.layers]:
        level = Level.CONTENTS if found.raw == made.config else Level.LAYERS
        return Comparison(level, made.digest, cause=_beside_contents(found, lock, made))
    if len(published) != len(made.layers):
        why = f"the published image has {len(published)} layers, and {len(made.layers)} were made"
        names = [layer.name for layer in made.layers]
        odd = next((one for one, other in zip(found.names, names, strict=False) if one != other), None)
        return Comparison(Level.DIFFERENT, made.digest, layer=odd, cause=why)
    first: Comparison | None = None
    for one, other in zip(found.layers, made.layers, strict=True):
        if one.diff_id == other.diff_id:
            continue
        with there(one.digest, one.size) as theirs, here(other.digest, other.size) as ours:
            result = _of_layer(other.name, _all(theirs), _all(ours), lock, made.digest)
        if result.level is Level.DIFFERENT:
            return result
        first = first or result
    return first or Comparison(Level.DIFFERENT, made.digest)


def _all(blob: Stream) -> list[FileEntry]:
    return list(entries(Plain(blob)))


def _of_layer(name: str, theirs: list[FileEntry], ours: list[FileEntry], lock: Lock, digest: str) -> Comparison:
    """Compare a layer: first what differs in more than the time."""
    pair, level = first_difference(theirs, ours, times=False), Level.DIFFERENT
    if pair is None:
        pair, level = first_difference(theirs, ours), Level.FILES
    if pair is None:
        return Comparison(
            level, digest, name, cause="the same entries, written otherwise: another program made the tar"
        )
    return Comparison(
        level, digest, name, f"/{pair.path.lstrip('./')}", pair.fields, likely_cause(_clue(name, pair, lock))
    )


def _clue(name: str, pair: Pair, lock: Lock) -> Clue:
    packages = next((part.wheels for part in plan(lock) if part.name == name), ())
    return Clue(name, pair, lock.record.layer_format if lock.record else None, packages)


def _beside_contents(found: ReadImage, lock: Lock, made: layers.Image) -> str:
    """Why digests differ though all files are the same."""
    if found.raw != made.config:
        return f"its config says otherwise about {_first_key(parse_json(found.raw), parse_json(made.config))}"
    kinds = {layer.compression or "nothing" for layer in found.layers}
    if lock.record and lock.record.codec != CODEC:
        return f"its layers were compressed with {lock.record.codec}, and here with {CODEC}"
    return f"its layers are compressed with {', '.join(sorted(kinds))}, otherwise than here ({CODEC})"


def _first_key(one: Any, other: Any, path: str = "") -> str:
    """Return the first difference of two configs, as a path of keys."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                return _first_key(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    return path or "its form"
