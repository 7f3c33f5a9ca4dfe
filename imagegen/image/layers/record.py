"""The recorded image of a lock."""

from __future__ import annotations

from dataclasses import replace

from imagegen.image.layers.image_config import Image, image
from imagegen.image.layers.plan import LAYER_FORMAT, LOADER, group_of
from imagegen.image.layers.sizes import has_uncompiled
from imagegen.image.layers.sources import plan_layers, recorded_layers
from imagegen.lock.model import Lock


def recorded_image(lock: Lock) -> Image:
    """Return config and manifest of the layers that the lock records; the layers themselves are not needed."""
    return image(lock, recorded_layers(lock))


def keep_record(new: Lock, previous: Lock) -> Lock:
    """Return `new` with the layers that `previous` records, if the keys of all layers are the same.

    Then only the image's configuration changes (its labels name the lock), and the digest follows from that. `new`
    itself is returned where a layer or a compiled wheel would be another. With several environments and wheels that
    are not compiled yet, keys are unknown, and the record is kept only if the locks of their cells are the same.
    """
    if previous.moved and _is_uncompiled(new):
        return new
    if previous.record is None or previous.record.layer_format != LAYER_FORMAT or new.builds != previous.builds:
        return new
    digest = recorded_image(replace(new, record=previous.record)).digest
    with_record = replace(new, record=replace(previous.record, digest=digest))
    return new if record_contradictions(with_record) else with_record


def _is_uncompiled(lock: Lock) -> bool:
    return any(has_uncompiled(environment.lock) for environment in lock.environments)


def record_contradictions(lock: Lock) -> tuple[str, ...]:
    """Return the fields of the lock's record that do not follow from the rest of the lock; none without a record.

    Each layer's key follows from its wheels, and the digest from the layers and every field of the lock. A record of
    another layer format is left to `compare_with_record`. Keys of layers whose wheels are not compiled yet are not
    checked.
    """
    record = lock.record
    if record is None or record.layer_format != LAYER_FORMAT:
        return ()
    if lock.has_several and _is_uncompiled(lock):
        return () if recorded_image(lock).digest == record.digest else ("record.digest",)
    uncompiled = {build.name for build in lock.builds} - {wheel.name for wheel in lock.wheels}
    unknown = uncompiled | {group_of(name) for name in uncompiled} | ({LOADER} if uncompiled else set())
    planned = {part.name: part.key for part in plan_layers(lock)}
    recorded = {layer.name: layer.key for layer in record.layers}
    differing = {name for name in planned.keys() | recorded.keys() if planned.get(name) != recorded.get(name)}
    wrong = [f"record.layers {name}" for name in sorted(differing - unknown)]
    return (*wrong, *(["record.digest"] if recorded_image(lock).digest != record.digest else []))
