"""The recorded image of a lock, and the sizes of its layers and packages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace

from imagegen.core.oci.types import ZSTD_TYPE
from imagegen.core.store import Store
from imagegen.image.layers import sources
from imagegen.image.layers.archive import ArchiveError, ZipArchive
from imagegen.image.layers.image import Image, image
from imagegen.image.layers.layer import Layer, known
from imagegen.image.layers.plan import LAYER_FORMAT, group_of
from imagegen.image.layers.sources import plan_layers
from imagegen.plan.lock.model import Lock, LockedWheel


def recorded_image(lock: Lock) -> Image:
    """Return config and manifest of the layers that the lock records; the layers themselves are not needed."""
    types = {layer.digest: layer.media_type for layer in sources.from_image(lock)}
    recorded = lock.record.layers if lock.record else ()
    return image(
        lock,
        [
            Layer(types.get(each.digest, ZSTD_TYPE), each.digest, each.size, each.diff_id, each.name, each.key)
            for each in recorded
        ],
    )


def keep_record(made: Lock, previous: Lock) -> Lock:
    """Return `made` with the layers that `previous` records, where the keys of all layers are the same.

    Then only the image's configuration changes (its labels name the lock), and the digest follows from that. `made`
    itself is returned where a layer or a compiled wheel would be another.
    """
    if previous.record is None or previous.record.layer_format != LAYER_FORMAT or made.builds != previous.builds:
        return made
    digest = recorded_image(replace(made, record=previous.record)).digest
    kept = replace(made, record=replace(previous.record, digest=digest))
    return made if record_contradictions(kept) else kept


def record_contradictions(lock: Lock) -> tuple[str, ...]:
    """Return the fields of the lock's record that do not follow from the rest of the lock; none without a record.

    Each layer's key follows from its wheels, and the digest from the layers and every field of the lock. A record of
    another layer format is left to `compare`. Keys of layers whose wheels are not compiled yet are not checked.
    """
    record = lock.record
    if record is None or record.layer_format != LAYER_FORMAT:
        return ()
    uncompiled = {build.name for build in lock.builds} - {wheel.name for wheel in lock.wheels}
    unknown = uncompiled | {group_of(name) for name in uncompiled}
    planned = {part.name: part.key for part in plan_layers(lock)}
    recorded = {layer.name: layer.key for layer in record.layers}
    differing = {name for name in planned.keys() | recorded.keys() if planned.get(name) != recorded.get(name)}
    wrong = [f"record.layers {name}" for name in sorted(differing - unknown)]
    return (*wrong, *(["record.digest"] if recorded_image(lock).digest != record.digest else []))


# The sizes of an image, its layers and its packages.


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
    own = sources.from_image(lock)
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
        with closing(ZipArchive(store.path(wheel.file.digest))) as archive:
            return sum(member.size for member in archive.files.values())
    except ArchiveError:  # a build says what is wrong with it
        return None
