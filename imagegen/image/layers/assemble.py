"""Build an image from a lock, or tell from the lock's record what it will be: its layers, their sizes.

Downloads, the base and the conversion of wheels overlap, and nothing is built twice.
"""

from __future__ import annotations

import ctypes
import os
import queue
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from imagegen.core.context import Context
from imagegen.core.errors import ReproducibilityError
from imagegen.core.net import MissingFiles
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.zip_archive import ArchiveError, ZipArchive
from imagegen.image import base
from imagegen.image.inputs import bytecode_base, complete, fetch_copies, fetch_each, tree
from imagegen.image.layers import scan, sources
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.image import Image, base_image, image, keep
from imagegen.image.layers.layer import (
    Compiler,
    Layer,
    files_layer,
    loader_layer,
    skeleton_layer,
    stored,
    support_layer,
    wheels_layer,
)
from imagegen.image.layers.plan import FILES, LAYER_FORMAT, LOADER, SUPPORT, LayerPlan, digest_of_json, group_of
from imagegen.image.layers.sources import (
    LayerOrigin,
    LayerSource,
    LayerStack,
    RemoteLayers,
    build_base,
    plan_base,
    plan_layers,
    prebuilt_base,
    previously_built_layers,
    required_bytes,
    resolve_layers,
)
from imagegen.lock import contents_hash
from imagegen.lock.model import Lock, LockedWheel, Record, RecordedLayer
from imagegen.oci.documents import ZSTD_TYPE

_IMAGES = Cache("image", Record)
_HEAP = {-8: 1, -3: 3 << 20, -1: 8 << 20}  # mallopt: M_ARENA_MAX; M_MMAP_THRESHOLD, M_TRIM_THRESHOLD in bytes


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

    Raises FetchError, WheelError, BaseError, SandboxError, StoreError, and LockError for a declared directory without
    libraries; the store keeps every finished layer.
    """
    base.require_published(lock.base, lock.platform, context)
    below = {part.key for part in plan_base(lock)}
    present = {source.plan.key for source in sources if source.origin is not LayerOrigin.BUILD}
    missing = [source.plan for source in sources if source.plan.key not in present | below]
    prebuilt = prebuilt_base(lock, remote)
    context.store.expect(required_bytes(lock, missing, context.store, prebuilt))
    if any(part.name in (FILES, LOADER) for part in missing):
        fetch_copies(lock, context)
    last = [part for part in missing if part.name == LOADER]  # it reads the files of all the others
    if converted := [part for part in missing if part.name != LOADER]:
        yield from _convert(converted, lock, context, present, prebuilt)
    elif not below <= present:
        yield from build_base(lock, context, prebuilt, present)
    scan.check(context.store, lock)  # layers of other images, which are reused, may own a file of these
    for part in last:
        yield loader_layer(context.store, part, lock, tree(lock.foundation, context, prebuilt))


def write_image(lock: Lock, stack: LayerStack, store: Store) -> Image:
    """Write config and manifest of the image and return it.

    The store remembers it for `built_digest` where every layer is one that this store built itself.
    """
    built = keep(store, image(lock, stack.layers()))
    own_layers = previously_built_layers(lock, store) if stack.remote else {}
    if all(own_layers.get(layer.key) == layer for layer in built.layers if layer.key in stack.remote):
        _IMAGES.put(store, _memory_key(lock), record_of(built))
    return built


def assemble_base(lock: Lock, context: Context) -> Image:
    """Build the layers under the venv and write them as an image."""
    base.require_published(lock.base, lock.platform, context)
    return keep(context.store, base_image(lock, list(build_base(lock, context))))


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
    built, record = _IMAGES.get(store, _memory_key(lock)), lock.record
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
    limit_heap()
    wheels = {wheel.file.digest: wheel for part in missing for wheel in part.wheels}
    needed = replace(lock, wheels=tuple(wheels.values()))
    cores = len(os.sched_getaffinity(0))
    side = ThreadPoolExecutor(1, thread_name_prefix="base")
    pool = ThreadPoolExecutor(cores + 1, thread_name_prefix="convert")  # one more: now and then one waits for the disk
    other, program = bytecode_base(lock), lock.interpreter.path
    native = side.submit(base.rootfs, other, context, program=program) if other else None
    rootfs = side.submit(tree, lock.foundation, context, prebuilt)
    work: list[Future[Any]] = [rootfs, *([native] if native else [])]
    finished: queue.SimpleQueue[Layer] = queue.SimpleQueue()
    ready: queue.PriorityQueue[int] = queue.PriorityQueue()

    def queue_base() -> None:
        for layer in build_base(lock, context, prebuilt, present):
            finished.put(layer)

    if not {part.key for part in plan_base(lock)} <= present:
        work.append(side.submit(queue_base))
    with Compiler(native or rootfs, program, cores) as compiler:

        def convert() -> None:
            """Build, of the layers that are ready, the one nearest to the bottom: engines load them in that order."""
            part = missing[ready.get_nowait()]
            finished.put(_make_layer(part, lock, context.store, compiler))
            trim_heap()

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
        return wheels_layer(store, part, lock.environment_at(part.prefixes[0]).lock, compiler)
    if part.name == FILES:
        return files_layer(store, part, lock)
    if part.name == SUPPORT:
        return support_layer(store, part, lock, compiler)
    return skeleton_layer(store, part, lock)


def _drain(finished: queue.SimpleQueue[Layer]) -> Iterator[Layer]:
    while not finished.empty():
        yield finished.get_nowait()


def _raise_failed(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        if future.done():
            future.result()


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


# The recorded image of a lock, and the sizes of its layers and packages.


def recorded_image(lock: Lock) -> Image:
    """Return config and manifest of the layers that the lock records; the layers themselves are not needed."""
    types = {layer.digest: layer.media_type for layer in sources.from_image(lock)}
    recorded = lock.record.layers if lock.record else ()
    return image(
        lock,
        [
            Layer(types.get(layer.digest, ZSTD_TYPE), layer.digest, layer.size, layer.diff_id, layer.name, layer.key)
            for layer in recorded
        ],
    )


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
    base_layers = sources.from_image(lock)
    sizes = [Size(layer.name, layer.size, layer.unpacked) for layer in base_layers]
    for part in plan_layers(lock):
        if any(layer.key == part.key for layer in base_layers):
            continue
        built_layer = stored(store, part.name, part.key)
        sizes.append(
            Size(
                part.name,
                built_layer.size if built_layer else recorded.get(part.key),
                built_layer.unpacked if built_layer else None,
            )
        )
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
