"""Build an image from a lock: downloads, the base and the conversion of wheels overlap, and nothing is built twice."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace
from typing import Any

from imagegen.core.context import Context
from imagegen.core.errors import ReproducibilityError
from imagegen.core.net import MissingFiles
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image import base
from imagegen.image.inputs import complete, fetch_each, tree
from imagegen.image.layers import ownership
from imagegen.image.layers.bytecode import Compiler
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.image import Image, base_image, image, keep
from imagegen.image.layers.layer import Layer, skeleton_layer, support_layer, wheels_layer
from imagegen.image.layers.plan import LAYER_FORMAT, SUPPORT, LayerPlan, digest_of_json
from imagegen.image.layers.sources import (
    LayerSource,
    LayerStack,
    Origin,
    RemoteLayers,
    build_base,
    plan_base,
    prebuilt_base,
    previously_built_layers,
    required_bytes,
    resolve_layers,
)
from imagegen.plan.lock import contents_hash
from imagegen.plan.lock.model import Lock, LockedWheel, Record, RecordedLayer

_IMAGES = Cache("image", Record)


def assemble(lock: Lock, context: Context) -> Image:
    """Build every layer that the store lacks and write the image. Raises as `ensure_layers`."""
    sources = resolve_layers(lock, context.store)
    stack = LayerStack(sources)
    for layer in ensure_layers(lock, sources, context):
        stack.add(layer)
    return write_image(lock, stack, context.store)


def ensure_layers(
    lock: Lock,
    sources: Sequence[LayerSource],
    context: Context,
    remote: RemoteLayers | None = None,
) -> Iterator[Layer]:
    """Build the layers that `sources` name for it; yield each when the store has it, in no fixed order.

    A base that must be unpacked, since its interpreter compiles byte-code, comes from `remote` where it can. At the end
    all files that the image's wheels install are known, and no two packages own one file.

    Raises FetchError, WheelError, BaseError, SandboxError, StoreError; the store keeps every finished layer.
    """
    base.require_published(lock.base, lock.platform, context)
    below = {part.key for part in plan_base(lock)}
    present = {source.plan.key for source in sources if source.origin is not Origin.BUILD}
    missing = [source.plan for source in sources if source.plan.key not in present | below]
    prebuilt = prebuilt_base(lock, remote)
    context.store.expect(required_bytes(lock, missing, context.store, prebuilt))
    if missing:
        yield from _convert(missing, lock, context, present, prebuilt)
    elif not below <= present:
        yield from build_base(lock, context, prebuilt, present)
    ownership.check(context.store, lock)  # layers of other images, which are reused, may own a file of these


def write_image(lock: Lock, stack: LayerStack, store: Store) -> Image:
    """Write config and manifest of the image and return it.

    The store remembers it for `built_digest` where every layer is one that this store built itself.
    """
    built = keep(store, image(lock, stack.layers()))
    own = previously_built_layers(lock, store) if stack.remote else {}
    if all(own.get(layer.key) == layer for layer in built.layers if layer.key in stack.remote):
        _IMAGES.put(store, _memory_key(lock), record_of(built))
    return built


def assemble_base(lock: Lock, context: Context) -> Image:
    """Build the layers under the venv and write them as an image."""
    base.require_published(lock.base, lock.platform, context)
    return keep(context.store, base_image(lock, list(build_base(lock, context))))


def record_of(built: Image) -> Record:
    """Return what `lock --record` writes into the lock."""
    layers = tuple(
        RecordedLayer(layer.name, layer.size, layer.digest, layer.diff_id, layer.key) for layer in built.layers
    )
    return Record(LAYER_FORMAT, CODEC, built.digest, layers)


def compare_with_record(lock: Lock, built: Image) -> str | None:
    """Compare the image with the lock's record: return None when equal, a note when only the codec differs.

    Raises ReproducibilityError when the unpacked contents (diff_ids) differ, or the digests under the same codec.
    """
    record = lock.record
    if record is None:
        return "the lock has no record yet: `imagegen lock --record` makes the digest a promise"
    made = record_of(built)
    if _essence(made) == _essence(record):
        return None
    if made.digest == record.digest:
        raise ReproducibilityError(
            f"the record of {lock.cell} contradicts itself",
            code="not-reproducible-record",
            why="its digest is right, but its layers are not those of the image with this digest",
            fix="restore the lock from version control, or record it again: `imagegen lock --record`",
        )
    promised = {layer.name: layer.diff_id for layer in record.layers}
    got = {layer.name: layer.diff_id for layer in made.layers}
    differing = [name for name in promised | got if promised.get(name) != got.get(name)]
    if not differing and record.codec != made.codec:
        return f"same contents as recorded, other blobs: this build compresses with {made.codec}, not {record.codec}"
    why = (
        f"layers differ in content: {', '.join(differing)}"
        if differing
        else "the contents agree; config or blobs do not"
    )
    if record.layer_format != LAYER_FORMAT:
        why = f"it was recorded with layer format {record.layer_format}, and this imagegen writes {LAYER_FORMAT}"
    raise ReproducibilityError(
        f"this build of {lock.cell} is not the recorded one: {made.digest} instead of {record.digest}",
        code="not-reproducible-image",
        why=why,
        fix="if the change is meant, `imagegen lock --record` records it; else `imagegen store check` looks for damage",
    )


def built_digest(lock: Lock, store: Store) -> str | None:
    """Return the digest of the image that this store built of the lock before, if it did and the record agrees.

    The record alone does not count: an edited lock may name any image that an engine happens to hold.
    """
    known, record = _IMAGES.get(store, _memory_key(lock)), lock.record
    if known is None:
        return None
    agrees = record is None or _essence(known) == _essence(record)
    if record and record.codec != CODEC:  # other blobs, then, and only the contents can be compared
        agrees = _contents(known) == _contents(record)
    return known.digest if agrees else None


def _essence(record: Record) -> tuple[str, tuple[RecordedLayer, ...]]:
    return record.digest, record.layers


def _contents(record: Record) -> list[tuple[str, str]]:
    return [(layer.name, layer.diff_id) for layer in record.layers]


def _memory_key(lock: Lock) -> str:
    return digest_of_json([contents_hash(lock), base.key(lock.base), LAYER_FORMAT, CODEC])


def _convert(
    missing: list[LayerPlan],
    lock: Lock,
    context: Context,
    present: set[str],
    prebuilt: base.PrebuiltBase | None,
) -> Iterator[Layer]:
    """Yield the missing layers and the base's. A layer is converted as soon as the last of its wheels is there.

    The first failure, of the base too, ends all work, so that it is not reported after gigabytes of downloads.
    """
    needed = replace(lock, wheels=tuple(wheel for part in missing for wheel in part.wheels))
    cores = len(os.sched_getaffinity(0))
    side = ThreadPoolExecutor(1, thread_name_prefix="base")
    pool = ThreadPoolExecutor(cores + 1, thread_name_prefix="convert")  # one more: now and then one waits for the disk
    rootfs = side.submit(tree, lock.foundation, context, prebuilt)
    work: list[Future[Any]] = [rootfs]
    finished: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    ready: queue.PriorityQueue[int] = queue.PriorityQueue()

    def queue_base() -> None:
        for layer in build_base(lock, context, prebuilt, present):
            finished.put(layer)

    if not {part.key for part in plan_base(lock)} <= present:
        work.append(side.submit(queue_base))
    with Compiler(rootfs, lock.interpreter.path, cores) as compiler:

        def convert() -> None:
            """Build, of the layers that are ready, the one nearest to the bottom: engines load them in that order."""
            part = missing[ready.get_nowait()]
            if part.wheels:
                finished.put(wheels_layer(context.store, part, lock, compiler))
            elif part.name == SUPPORT:
                finished.put(support_layer(context.store, part, lock, compiler))
            else:
                finished.put(skeleton_layer(context.store, part, lock))

        try:
            with closing(fetch_each(needed, context, rootfs.result)) as arrivals:
                for part in _as_ready(missing, arrivals):
                    ready.put(missing.index(part))
                    work.append(pool.submit(convert))
                    _raise_failed(work)
                    yield from _drain(finished)
            for future in as_completed(work):
                future.result()
                yield from _drain(finished)
        except MissingFiles as error:
            raise complete(error, needed, context.store) from error
        finally:
            pool.shutdown(cancel_futures=True)
            side.shutdown(cancel_futures=True)


def _drain(finished: queue.SimpleQueue[Layer]) -> Iterator[Layer]:
    while not finished.empty():
        yield finished.get_nowait()


def _raise_failed(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        if future.done():
            future.result()


def _as_ready(plans: list[LayerPlan], arrivals: Iterable[LockedWheel]) -> Iterator[LayerPlan]:
    """Yield each plan once the last of its wheels has arrived."""
    waiting = {part.key: {wheel.name for wheel in part.wheels} for part in plans}
    owner = {wheel.name: part for part in plans for wheel in part.wheels}
    yield from (part for part in plans if not part.wheels)
    for wheel in arrivals:
        part = owner[wheel.name]
        waiting[part.key].discard(wheel.name)
        if not waiting[part.key]:
            yield part
