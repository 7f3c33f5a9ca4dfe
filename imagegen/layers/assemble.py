"""Lock -> image in the store. Downloads, the base and the conversion of wheels overlap; what is known is not redone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from imagegen import base
from imagegen.config import Settings
from imagegen.errors import ReproducibilityError
from imagegen.layers import ownership
from imagegen.layers.bytecode import Compiler
from imagegen.layers.codec import CODEC
from imagegen.layers.image import Image, base_image, image, keep
from imagegen.layers.layer import Layer, base_layer, known, skeleton_layer, wheels_layer
from imagegen.layers.plan import LAYER_FORMAT, LayerPlan, plan
from imagegen.lock import fetch_each
from imagegen.lock.model import Lock, LockedWheel, Record, RecordedLayer
from imagegen.progress import Progress
from imagegen.store import Store


def assemble(lock: Lock, store: Store, settings: Settings, progress: Progress) -> Image:
    """Make every layer that the store lacks, then config and manifest.

    Raises FetchError, WheelError, BaseError, SandboxError; the store keeps whatever was finished before.
    """
    plans = plan(lock)
    found = {part.key: layer for part in plans if (layer := known(store, part.name, part.key)) is not None}
    missing = [part for part in plans if part.key not in found]
    if missing:
        found |= _convert(missing, lock, store, settings, progress)
    ownership.check(store, lock.wheels, lock.python)  # layers that are known one by one may still clash
    bottom = _base(lock, store, settings, progress)
    return keep(store, image(lock, [bottom, *(found[part.key] for part in plans)]))


def assemble_base(lock: Lock, store: Store, settings: Settings, progress: Progress) -> Image:
    """The base alone as an image in the store."""
    return keep(store, base_image(lock, _base(lock, store, settings, progress)))


def record_of(built: Image) -> Record:
    """What `lock --record` writes."""
    layers = tuple(
        RecordedLayer(layer.name, layer.key, layer.diff_id, layer.digest, layer.size) for layer in built.layers
    )
    return Record(LAYER_FORMAT, CODEC, layers, built.digest)


def compare(lock: Lock, built: Image) -> str | None:
    """Hold the build to its record: None when equal, a remark when only the codec differs.

    Raises ReproducibilityError when the unpacked contents (diff_ids) differ, or the digests under the same codec.
    """
    record = lock.record
    if record is None:
        return "the lock has no record yet: `imagegen lock --record` makes the digest a promise"
    made = record_of(built)
    if made.digest == record.digest:
        return None
    promised = {layer.name: layer.diff_id for layer in record.layers}
    got = {layer.name: layer.diff_id for layer in made.layers}
    differing = [name for name in promised | got if promised.get(name) != got.get(name)]
    if not differing and record.codec != made.codec:
        return f"same contents as recorded, other blobs: this build compresses with {made.codec}, not {record.codec}"
    names = ", ".join(differing)
    raise ReproducibilityError(
        f"this build of {lock.cell} is not the recorded one: {made.digest} instead of {record.digest}",
        why=f"layers differ in content: {names}" if names else "the contents agree; config or blobs do not",
        fix="if the change is meant, `imagegen lock --record` records it; else `imagegen store check` looks for damage",
    )


def _base(lock: Lock, store: Store, settings: Settings, progress: Progress) -> Layer:
    key = base.key(lock.base)
    layer = known(store, "base", key)
    return layer or base_layer(store, key, base.build(lock.base, store, settings, progress).diff_id)


def _convert(
    missing: list[LayerPlan], lock: Lock, store: Store, settings: Settings, progress: Progress
) -> dict[str, Layer]:
    """Layers by key. A layer is converted as soon as the last of its wheels is there.

    The first failure, of the base too, ends it all: nobody waits for gigabytes to hear of it.
    """
    needed = replace(lock, wheels=tuple(wheel for part in missing for wheel in part.wheels))
    cores = len(os.sched_getaffinity(0))
    side = ThreadPoolExecutor(1, thread_name_prefix="base")
    pool = ThreadPoolExecutor(max(2, cores), thread_name_prefix="convert")
    rootfs = side.submit(base.rootfs, lock.base, store, settings, progress)
    futures: dict[str, Future[Layer]] = {}
    with Compiler(rootfs, lock.base.interpreter, cores) as compiler:
        try:
            with closing(fetch_each(needed, store, settings, progress)) as arrivals:
                for part in _as_ready(missing, arrivals):
                    work = partial(wheels_layer, compiler=compiler) if part.wheels else skeleton_layer
                    futures[part.key] = pool.submit(work, store, part, lock)
                    _raise_failed(rootfs, *futures.values())
            return {key: future.result() for key, future in futures.items()}
        finally:
            pool.shutdown(cancel_futures=True)
            side.shutdown(cancel_futures=True)


def _raise_failed(*futures: Future[Any]) -> None:
    for future in futures:
        if future.done():
            future.result()


def _as_ready(plans: list[LayerPlan], arrivals: Iterable[LockedWheel]) -> Iterator[LayerPlan]:
    """Each plan once the last of its wheels has arrived."""
    waiting = {part.key: {wheel.name for wheel in part.wheels} for part in plans}
    owner = {wheel.name: part for part in plans for wheel in part.wheels}
    yield from (part for part in plans if not part.wheels)
    for wheel in arrivals:
        part = owner[wheel.name]
        waiting[part.key].discard(wheel.name)
        if not waiting[part.key]:
            yield part
