"""The sizes of an image, its layers and its packages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from imagegen.core.store import Store
from imagegen.image.layers import base_layers
from imagegen.image.layers.archive import Archive, ArchiveError
from imagegen.image.layers.layer import known
from imagegen.image.layers.sources import plan_layers
from imagegen.plan.lock.model import Lock, LockedWheel


@dataclass(frozen=True)
class Size:
    """The size of a layer in bytes, compressed and on a disk; None where this store cannot tell."""

    name: str
    packed: int | None
    unpacked: int | None


def layer_sizes(lock: Lock, store: Store, *, whole: bool = True) -> tuple[Size, ...]:
    """Return the sizes of the image's layers from the bottom up: as this store has built them, else as the lock records
    them.

    Not `whole`: compiled wheels are not there, and only a record has the layers that they are in.
    """
    if lock.record and not whole:
        return tuple(Size(layer.name, layer.size, None) for layer in lock.record.layers)
    recorded = {layer.key: layer.size for layer in lock.record.layers} if lock.record else {}
    own = base_layers.from_image(lock)
    sizes = [Size(layer.name, layer.size, layer.unpacked) for layer in own]
    for part in plan_layers(lock):
        if any(layer.key == part.key for layer in own):
            continue
        made = known(store, part.name, part.key)
        sizes.append(Size(part.name, made.size if made else recorded.get(part.key), made.unpacked if made else None))
    return tuple(sizes)


def package_sizes(lock: Lock, store: Store) -> tuple[Size, ...]:
    """The wheels, the heaviest on a disk first; byte-code that is compiled for the image is not counted."""
    sizes = [Size(wheel.name, wheel.file.size, _unpacked(wheel, store)) for wheel in lock.wheels]
    return tuple(sorted(sizes, key=lambda size: (-(size.unpacked or size.packed or 0), size.name)))


def shared(lock: Lock, others: Iterable[Lock]) -> dict[str, tuple[int, int]]:
    """Cell -> how many of this image's recorded layers it has too, and what they weigh (compressed bytes)."""
    own = {layer.digest: layer.size for layer in lock.record.layers} if lock.record else {}
    found = {}
    for other in others:
        both = own.keys() & {layer.digest for layer in other.record.layers} if other.record else set()
        found[other.cell] = (len(both), sum(own[digest] for digest in both))
    return found


def _unpacked(wheel: LockedWheel, store: Store) -> int | None:
    if not store.has(wheel.file.digest, wheel.file.size):
        return None
    try:
        with closing(Archive(store.path(wheel.file.digest))) as archive:
            return sum(member.size for member in archive.files.values())
    except ArchiveError:  # a build says what is wrong with it
        return None
