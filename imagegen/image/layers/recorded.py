"""The image that a lock's record describes, and whether the record fits the rest of the lock. Pure: reads no file."""

from __future__ import annotations

from dataclasses import replace

from imagegen.image.layers import base_layers
from imagegen.image.layers.codec import MEDIA_TYPE
from imagegen.image.layers.image import Image, image
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.plan import LAYER_FORMAT, group_of
from imagegen.image.layers.sources import plan_layers
from imagegen.plan.lock.model import Lock


def recorded_image(lock: Lock) -> Image:
    """Return config and manifest of the layers that the lock records; the layers themselves are not needed."""
    types = {layer.digest: layer.media_type for layer in base_layers.from_image(lock)}
    recorded = lock.record.layers if lock.record else ()
    return image(
        lock,
        [
            Layer(each.name, each.key, each.diff_id, each.digest, each.size, None, types.get(each.digest, MEDIA_TYPE))
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
