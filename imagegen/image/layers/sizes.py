"""The sizes of an image, its layers and its packages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from imagegen.core.store import Store
from imagegen.core.zip_archive import ArchiveError, ZipArchive
from imagegen.image.layers.base_layers import from_image
from imagegen.image.layers.sources import resolve_layers
from imagegen.lock.model import Lock, LockedWheel


@dataclass(frozen=True)
class Size:
    """The size of a layer in bytes, compressed and on a disk; None where this store cannot tell."""

    name: str
    packed: int | None
    unpacked: int | None


def layer_sizes(lock: Lock, store: Store, *, whole: bool = True) -> tuple[Size, ...]:
    """Return the sizes of the image's layers from the bottom up, as this store built them, else as the lock records.

    Not `whole`: compiled wheels are not there, and only a record has the layers that they are in.
    """
    if lock.record and not whole:
        return tuple(Size(layer.name, layer.size, None) for layer in lock.record.layers)
    recorded = {layer.key: layer.size for layer in lock.record.layers} if lock.record else {}
    fetched = {layer.key: layer for layer in from_image(lock)}
    sizes = []
    for source in resolve_layers(lock, store).sources:
        part, layer = source.plan, fetched.get(source.plan.key) or (None if source.is_absent else source.layer)
        packed, unpacked = (layer.size, layer.unpacked) if layer else (recorded.get(part.key), None)
        sizes.append(Size(part.name, packed, unpacked))
    return tuple(sizes)


def has_uncompiled(lock: Lock) -> bool:
    """Return whether the lock has a build whose wheel it does not have."""
    return bool({build.name for build in lock.builds} - {wheel.name for wheel in lock.wheels})


def package_sizes(lock: Lock, store: Store) -> tuple[Size, ...]:
    """The wheels, the heaviest on a disk first; byte-code that is compiled for the image is not counted."""
    wheels = lock.distinct_wheels
    names = Counter(wheel.name for wheel in wheels)  # environments may have several versions
    sizes = [
        Size(
            f"{wheel.name} {wheel.version}" if names[wheel.name] > 1 else wheel.name,
            wheel.file.size,
            _unpacked(wheel, store),
        )
        for wheel in wheels
    ]
    return tuple(sorted(sizes, key=lambda size: (-(size.unpacked or size.packed or 0), size.name)))


def shared(lock: Lock, other_locks: Iterable[Lock]) -> dict[str, tuple[int, int]]:
    """Cell -> how many of this image's recorded layers it has too, and what they weigh (compressed bytes)."""
    own_sizes = {layer.digest: layer.size for layer in lock.record.layers} if lock.record else {}
    counts = {}
    for other in other_locks:
        both = own_sizes.keys() & {layer.digest for layer in other.record.layers} if other.record else set()
        counts[other.cell] = (len(both), sum(own_sizes[digest] for digest in both))
    return counts


def _unpacked(wheel: LockedWheel, store: Store) -> int | None:
    if not store.has(wheel.file.digest, wheel.file.size):
        return None
    try:
        with closing(ZipArchive(store.path(wheel.file.digest))) as archive:
            return sum(member.size for member in archive.files.values())
    except ArchiveError:  # a build says what is wrong with it
        return None
