"""Build an image from a lock.

Downloads, the base and the conversion of wheels overlap, and nothing is built twice.
"""

from __future__ import annotations

import ctypes
import os
import queue
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagegen.core.context import Context
from imagegen.core.errors import ReproducibilityError
from imagegen.core.net import MissingFiles
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image import base
from imagegen.image.file_tree import bytecode_base, packages_layer, tree
from imagegen.image.inputs import complete, fetch_copies, fetch_each
from imagegen.image.layers import ownership
from imagegen.image.layers.base_layers import from_image, plan_base
from imagegen.image.layers.byte_code import Compiler
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.image_config import Image, base_image, image, keep
from imagegen.image.layers.layer import (
    Layer,
    LayerOrigin,
    files_layer,
    interpreter_layer,
    loader_layer,
    skeleton_layer,
    support_layer,
    tar_layer,
    wheels_layer,
)
from imagegen.image.layers.plan import (
    FILES,
    INTERPRETER,
    LAYER_FORMAT,
    LOADER,
    PACKAGES,
    SUPPORT,
    LayerPlan,
    digest_of_json,
    group_of,
)
from imagegen.image.layers.sizes import has_uncompiled
from imagegen.image.layers.sources import (
    LayerStack,
    ResolvedLayers,
    plan_layers,
    previously_built_layers,
    recorded_layers,
    required_bytes,
    resolve_layers,
)
from imagegen.lock import contents_hash
from imagegen.lock.model import Lock, LockedWheel, Record, RecordedLayer

_IMAGES = Cache("image", Record)
_HEAP = {-8: 1, -3: 3 << 20, -1: 8 << 20}  # mallopt: M_ARENA_MAX; M_MMAP_THRESHOLD, M_TRIM_THRESHOLD in bytes


def assemble(lock: Lock, context: Context) -> Image:
    """Build every layer that the store lacks and write the image. Raises as `ensure_layers`."""
    resolved = resolve_layers(lock, context.store)
    stack = LayerStack(resolved)
    for layer in ensure_layers(resolved, context):
        stack.add(layer)
    return write_image(lock, stack, context.store)


def ensure_layers(resolved: ResolvedLayers, context: Context) -> Iterator[Layer]:
    """Fetch or build the absent layers; yield each when the store has it, in no fixed order.

    At the end all files that the image's wheels install are known, and no two packages own one file.

    Raises FetchError, WheelError, BaseError, SandboxError, StoreError, and LockError for a declared directory without
    libraries; the store keeps every finished layer.
    """
    lock, missing = resolved.lock, resolved.absent_stack
    base.require_published(lock.base, lock.platform, context)
    context.store.expect(required_bytes(resolved, context.store))
    if any(part.name in (FILES, LOADER) for part in missing):
        fetch_copies(lock, context)
    last = [part for part in missing if part.name == LOADER]  # it reads the files of all the others
    if converted := [part for part in missing if part.name != LOADER]:
        yield from _convert(converted, resolved, context)
    else:
        yield from _build_base(resolved, context)
    ownership.check(context.store, lock)  # layers of other images, which are reused, may own a file of these
    for part in last:
        yield loader_layer(context.store, part, lock, tree(lock.foundation, context, resolved.prebuilt))


def write_image(lock: Lock, stack: LayerStack, store: Store) -> Image:
    """Write config and manifest of the image and return it.

    The store remembers it for `built_digest` where every layer is one that this store built itself.
    """
    built = keep(store, image(lock, stack.layers()))
    own_layers = previously_built_layers(lock, store) if stack.remote else {}
    if all(own_layers.get(layer.key) == layer for layer in built.layers if layer.key in stack.remote):
        _IMAGES.put(store, image_key(lock), record_of(built))
    return built


def assemble_base(lock: Lock, context: Context) -> Image:
    """Build the layers under the venv and write them as an image."""
    base.require_published(lock.base, lock.platform, context)
    resolved = resolve_layers(lock, context.store, plans=plan_base(lock))
    stack = LayerStack(resolved)
    for layer in _build_base(resolved, context):
        stack.add(layer)
    return keep(context.store, base_image(lock, stack.layers()))


def _build_base(resolved: ResolvedLayers, context: Context) -> Iterator[Layer]:
    """Yield the absent layers under the venv, from the bottom up, each when the store has it.

    Raises BaseError, FetchError, SandboxError.
    """
    lock, absent = resolved.lock, resolved.absent_base
    if any(source.origin is LayerOrigin.FETCH for source in absent):
        base.fetch_layers(lock.base, context)
        yield from from_image(lock)
    for part in (source.plan for source in absent if source.origin is LayerOrigin.BUILD):
        if part.name == INTERPRETER:
            yield _interpreter(part.key, lock, context, resolved.prebuilt)
        else:
            built = (
                packages_layer(lock.foundation, context) if part.name == PACKAGES else base.build(lock.base, context)
            )
            yield tar_layer(context.store, part.name, part.key, built.diff_id)


def _interpreter(key: str, lock: Lock, context: Context, prebuilt: base.PrebuiltBase | None) -> Layer:
    below = tree(lock.foundation, context, prebuilt)
    rootfs: Future[Path] = Future()
    rootfs.set_result(below)
    cores = len(os.sched_getaffinity(0))
    with (
        timed(context.progress, f"compiling the library of interpreter {lock.interpreter.name}"),
        Compiler(rootfs, lock.interpreter.path, cores) as compiler,
    ):
        return interpreter_layer(context.store, key, lock, below, compiler)


def record_of(built: Image) -> Record:
    """Return the record that `lock --record` writes into the lock."""
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
    new_record = record_of(built)
    if _essence(new_record) == _essence(record):
        return None
    if new_record.digest == record.digest:
        raise ReproducibilityError(
            f"the record of {lock.cell} contradicts itself",
            code="not-reproducible-record",
            why="its digest is right, but its layers differ from the image with this digest",
            fix="restore the lock from version control, or record it again: `imagegen lock --record`",
        )
    promised = {layer.name: layer.diff_id for layer in record.layers}
    got = {layer.name: layer.diff_id for layer in new_record.layers}
    differing = [name for name in promised | got if promised.get(name) != got.get(name)]
    if not differing and record.codec != new_record.codec:
        return (
            f"same contents as recorded, other blobs: this build compresses with {new_record.codec}, not {record.codec}"
        )
    why = (
        f"layers differ in content: {', '.join(differing)}"
        if differing
        else "the contents agree; config or blobs do not"
    )
    if record.layer_format != LAYER_FORMAT:
        why = f"it was recorded with layer format {record.layer_format}, and this imagegen writes {LAYER_FORMAT}"
    raise ReproducibilityError(
        f"this build of {lock.cell} is not the recorded one: {new_record.digest} instead of {record.digest}",
        code="not-reproducible-image",
        why=why,
        fix="if the change is meant, `imagegen lock --record` records it; else `imagegen store check` looks for damage",
    )


def built_digest(lock: Lock, store: Store) -> str | None:
    """Return the digest of the image that this store built of the lock before, if it did and the record agrees.

    A record is not enough, since an edited lock may name any image that an engine happens to have.
    """
    built, record = _IMAGES.get(store, image_key(lock)), lock.record
    if built is None:
        return None
    agrees = record is None or _essence(built) == _essence(record)
    if record and record.codec != CODEC:  # other blobs, then, and only the contents can be compared
        agrees = _contents(built) == _contents(record)
    return built.digest if agrees else None


def _essence(record: Record) -> tuple[str, tuple[RecordedLayer, ...]]:
    return record.digest, record.layers


def _contents(record: Record) -> list[tuple[str, str]]:
    return [(layer.name, layer.diff_id) for layer in record.layers]


def image_key(lock: Lock) -> str:
    """Return the key under which a store records the image of a lock."""
    return digest_of_json([contents_hash(lock), base.key(lock.base), LAYER_FORMAT, CODEC])


def _convert(missing: list[LayerPlan], resolved: ResolvedLayers, context: Context) -> Iterator[Layer]:
    """Yield the missing layers and the base's. A layer is converted as soon as the last of its wheels is there.

    The first failure, of the base too, ends all work, so that it is not reported after gigabytes of downloads.
    """
    limit_heap()
    lock = resolved.lock
    wheels = {wheel.file.digest: wheel for part in missing for wheel in part.wheels}
    needed = replace(lock, wheels=tuple(wheels.values()))
    cores = len(os.sched_getaffinity(0))
    side = ThreadPoolExecutor(1, thread_name_prefix="base")
    pool = ThreadPoolExecutor(cores + 1, thread_name_prefix="convert")  # one more: now and then one waits for the disk
    other, program = bytecode_base(lock), lock.interpreter.path
    native = side.submit(base.rootfs, other, context, program=program) if other else None
    rootfs = side.submit(tree, lock.foundation, context, resolved.prebuilt)
    work: list[Future[Any]] = [rootfs, *([native] if native else [])]
    finished: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    ready: queue.PriorityQueue[int] = queue.PriorityQueue()

    def queue_base() -> None:
        for layer in _build_base(resolved, context):
            finished.put(layer)

    if resolved.absent_base:
        work.append(side.submit(queue_base))
    with Compiler(native or rootfs, program, cores) as compiler:

        def convert() -> None:
            """Build, of the layers that are ready, the one nearest to the bottom: engines load them in that order."""
            part = missing[ready.get_nowait()]
            finished.put(_make_layer(part, lock, context.store, compiler))
            trim_heap()

        try:
            with closing(fetch_each(needed, context, rootfs)) as arrivals:
                for part in _as_ready(missing, arrivals):
                    ready.put(missing.index(part))
                    work.append(pool.submit(convert))
                    for future in filter(Future.done, work):
                        future.result()
                    yield from _drain(finished)
            for future in as_completed(work):
                future.result()
                yield from _drain(finished)
        except MissingFiles as error:
            raise complete(error, needed, context.store) from error
        finally:
            pool.shutdown(cancel_futures=True)
            side.shutdown(cancel_futures=True)


def limit_heap() -> None:
    """Let the C library give freed memory back to the system while threads convert wheels.

    glibc gives each thread an arena of its own, and after the first large block that is freed it takes blocks of up to
    32 MiB from arenas, which keep them. Here all threads share one, and only blocks below 3 MiB come from it: pieces of
    files do, the buffers of the compressor do not. Measured: bench/journal/2026-11-26-cpu-grpo-build.md.
    Source: mallopt(3); musl has no mallopt.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for parameter, value in _HEAP.items():
            mallopt(parameter, value)


def trim_heap() -> None:
    """Give the memory that was freed back to the system (malloc_trim(3); musl has none)."""
    if malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        malloc_trim(0)


def _make_layer(part: LayerPlan, lock: Lock, store: Store, compiler: Compiler) -> Layer:
    if part.wheels:
        locks = {environment.prefix: environment.lock for environment in lock.environments}
        return wheels_layer(store, part, locks[part.prefixes[0]], compiler)
    if part.name == FILES:
        return files_layer(store, part, lock)
    if part.name == SUPPORT:
        return support_layer(store, part, lock, compiler)
    return skeleton_layer(store, part, lock)


def _drain(finished: queue.SimpleQueue[Layer]) -> Iterator[Layer]:
    while not finished.empty():
        yield finished.get_nowait()


def _as_ready(plans: list[LayerPlan], arrivals: Iterable[LockedWheel]) -> Iterator[LayerPlan]:
    """Yield each plan once the last of its wheels has arrived."""
    waiting = {part.key: {wheel.file.digest for wheel in part.wheels} for part in plans}
    yield from (part for part in plans if not part.wheels)
    for wheel in arrivals:
        for part in plans:
            if wheel.file.digest in waiting[part.key]:
                waiting[part.key].discard(wheel.file.digest)
                if not waiting[part.key]:
                    yield part


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
