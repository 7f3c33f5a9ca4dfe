"""Lock -> image in the store. Downloads, the base and the conversion of wheels overlap; what is known is not redone."""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from imagegen.core.config import Settings
from imagegen.core.errors import ReproducibilityError
from imagegen.core.net import MissingFiles
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image import base
from imagegen.image.inputs import complete, fetch_each, tree
from imagegen.image.layers import foundation, ownership, reuse, space
from imagegen.image.layers.bytecode import Compiler
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.image import Image, base_image, image, keep
from imagegen.image.layers.layer import Layer, known, skeleton_layer, support_layer, wheels_layer
from imagegen.image.layers.plan import LAYER_FORMAT, SUPPORT, LayerPlan, digest_of_json, plan
from imagegen.plan.lock import contents_hash
from imagegen.plan.lock.model import Lock, LockedWheel, Record, RecordedLayer

_IMAGE = "image"  # records of the store: what a lock gave

Grown = Callable[[Sequence[Layer]], None]


def assemble(
    lock: Lock,
    store: Store,
    settings: Settings,
    progress: Progress,
    grown: Grown = lambda _: None,
    gate: Callable[[], None] = lambda: None,
    elsewhere: Mapping[str, Layer] = MappingProxyType({}),
    bring: base.Bring | None = None,
) -> Image:
    """Make every layer that the store lacks and that is not `elsewhere`, then config and manifest.

    `grown` is called, from any thread, with the image's bottom whenever there is more of it in the store: an engine can
    load that meanwhile. `gate` is called when all layers are there, and what an audit needs of them is known: what it
    raises ends the matter, and no image is made.

    `elsewhere` are layers by their key that the caller believes to be what this would make: they are taken as they are,
    and nothing is fetched or made for them, unless nobody knows which files their wheels bring (`inventory.carried`).
    `bring` can have the base's among them here, whose tree compiles byte-code for what is made.

    Raises FetchError, WheelError, BaseError, SandboxError, and what `bring` raises; the store keeps whatever was
    finished before.
    """
    base.require_published(lock.base, lock.platform, store, settings, progress)
    plans = plan(lock)
    bottom = foundation.names(lock)
    stack = _Stack([*bottom, *(part.key for part in plans)], grown)
    for layer in (*foundation.known_layers(lock, store), *(known(store, part.name, part.key) for part in plans)):
        if layer is not None:
            stack.add(layer)
    _take(stack, lock, plans, elsewhere, store, progress)
    missing = [part for part in plans if part.key not in stack.found]
    made = foundation.made(lock, elsewhere, bring)
    store.expect(space.needed(lock, missing, store, made))
    if missing:
        _convert(missing, lock, store, settings, progress, stack, made)
    elif not stack.found.keys() >= bottom.keys():
        _add_foundation(stack, lock, store, settings, progress, made)
    ownership.check(store, lock)  # layers that are known one by one may still clash
    gate()
    built = keep(store, image(lock, stack.layers()))
    own = reuse.remembered(lock, store)
    if all(own.get(key) == stack.found[key] for key in stack.taken):
        store.remember(_IMAGE, _memory_key(lock), _essence(record_of(built)))
    return built


def _take(
    stack: _Stack,
    lock: Lock,
    plans: Sequence[LayerPlan],
    elsewhere: Mapping[str, Layer],
    store: Store,
    progress: Progress,
) -> None:
    """Give the stack what it lacks of the layers elsewhere, as far as their files can be held against others'."""
    for layer in foundation.named(lock, elsewhere):
        if layer.key not in stack.found:
            stack.take(layer)
    unknown = 0
    for part in plans:
        if part.key in elsewhere and part.key not in stack.found:
            if all(ownership.known(store, wheel, lock.python) is not None for wheel in part.wheels):
                stack.take(replace(elsewhere[part.key], name=part.name, key=part.key))
            else:
                unknown += 1
    if unknown:
        progress.say(f"note: {counted(unknown, 'layer')} must be made here: nothing is known of their wheels' files")


class _Stack:
    """The image's layers, added in any order; says when the part without gaps, from the bottom, has grown.

    Those that are taken are not in the store, and an engine cannot have them from there.
    """

    def __init__(self, keys: Sequence[str], grown: Grown) -> None:
        self._keys, self._grown = keys, grown
        self.found: dict[str, Layer] = {}
        self.taken: set[str] = set()
        self._height = 0
        self._lock = threading.Lock()

    def take(self, layer: Layer) -> None:
        self.found[layer.key] = layer
        self.taken.add(layer.key)

    def add(self, layer: Layer) -> None:
        with self._lock:
            self.found[layer.key] = layer
            self.taken.discard(layer.key)
            here = self.found.keys() - self.taken
            whole = list(itertools.takewhile(here.__contains__, self._keys))
            if len(whole) > self._height:
                self._height = len(whole)
                self._grown([self.found[key] for key in whole])

    def layers(self) -> list[Layer]:
        return [self.found[key] for key in self._keys]


def assemble_base(lock: Lock, store: Store, settings: Settings, progress: Progress) -> Image:
    """Make what lies under the venv an image in the store."""
    base.require_published(lock.base, lock.platform, store, settings, progress)
    return keep(store, base_image(lock, list(foundation.layers(lock, store, settings, progress))))


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


def made_here(lock: Lock, store: Store) -> str | None:
    """The digest of the image that this store has made of the lock before, if it did and the record agrees.

    A record is a claim: a lock from elsewhere may name any image that an engine happens to hold.
    """
    known, record = store.recall(_IMAGE, _memory_key(lock)), lock.record
    if known is None:
        return None
    agrees = record is None or known == _essence(record)
    if record and record.codec != CODEC:  # other blobs, then, and only the contents can be compared
        agrees = _contents(known) == _contents(_essence(record))
    return str(known["digest"]) if agrees else None


def _essence(record: Record) -> dict[str, Any]:
    return {"digest": record.digest, "layers": [asdict(layer) for layer in record.layers]}


def _contents(essence: Mapping[str, Any]) -> list[Any]:
    return [(layer["name"], layer["diff_id"]) for layer in essence["layers"]]


def _memory_key(lock: Lock) -> str:
    return digest_of_json([contents_hash(lock), base.key(lock.base), LAYER_FORMAT, CODEC])


def _add_foundation(
    stack: _Stack, lock: Lock, store: Store, settings: Settings, progress: Progress, made: base.Made | None
) -> None:
    for layer in foundation.layers(lock, store, settings, progress, made, stack.found):
        stack.add(layer)


def _convert(
    missing: list[LayerPlan],
    lock: Lock,
    store: Store,
    settings: Settings,
    progress: Progress,
    stack: _Stack,
    made: base.Made | None,
) -> None:
    """Add what is missing. A layer is converted as soon as the last of its wheels is there.

    The first failure, of the base too, ends it all: nobody waits for gigabytes to hear of it.
    """
    needed = replace(lock, wheels=tuple(wheel for part in missing for wheel in part.wheels))
    cores = len(os.sched_getaffinity(0))
    side = ThreadPoolExecutor(1, thread_name_prefix="foundation")
    pool = ThreadPoolExecutor(cores + 1, thread_name_prefix="convert")  # one more: now and then one waits for the disk
    rootfs = side.submit(tree, lock.foundation, store, settings, progress, made)
    work: list[Future[Any]] = [rootfs]
    if not stack.found.keys() >= foundation.names(lock).keys():
        work.append(side.submit(_add_foundation, stack, lock, store, settings, progress, made))
    ready: queue.PriorityQueue[int] = queue.PriorityQueue()
    with Compiler(rootfs, lock.interpreter.path, cores) as compiler:

        def make() -> None:
            """Of what is ready, the layer nearest to the bottom: the engine takes them from there."""
            part = missing[ready.get_nowait()]
            if part.wheels:
                stack.add(wheels_layer(store, part, lock, compiler))
            elif part.name == SUPPORT:
                stack.add(support_layer(store, part, lock, compiler))
            else:
                stack.add(skeleton_layer(store, part, lock))

        try:
            with closing(fetch_each(needed, store, settings, progress, rootfs.result)) as arrivals:
                for part in _as_ready(missing, arrivals):
                    ready.put(missing.index(part))
                    work.append(pool.submit(make))
                    _raise_failed(work)
            for future in work:
                future.result()
        except MissingFiles as error:
            raise complete(error, needed, store) from error
        finally:
            pool.shutdown(cancel_futures=True)
            side.shutdown(cancel_futures=True)


def _raise_failed(futures: Iterable[Future[Any]]) -> None:
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
