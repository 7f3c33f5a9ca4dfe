"""The layers under the venv, from the bottom up, in the one order that all of imagegen takes from here.

1. The base: Debian's packages as one layer, the layers of a registry's image as they are.
2. (Debian packages that are added above the base have their place here, as at most one layer.)
3. A standalone interpreter, as one layer.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from imagegen import base, registry
from imagegen.config import Settings
from imagegen.layers.bytecode import Compiler
from imagegen.layers.layer import Layer, base_layer, interpreter_layer, known
from imagegen.layers.plan import INTERPRETER, digest_of_json, interpreter_layer_key
from imagegen.lock.foundation import tree
from imagegen.lock.model import Lock
from imagegen.progress import Progress, timed
from imagegen.store import Store


def names(lock: Lock) -> dict[str, str]:
    """Return key -> name of every layer under the venv, from the bottom up."""
    return _of_base(lock) | above_base(lock)


def above_base(lock: Lock) -> dict[str, str]:
    """Return key -> name of the layers between base and venv, from the bottom up; imagegen makes each of them."""
    return {interpreter_layer_key(lock): INTERPRETER} if lock.interpreter.file else {}


def _of_base(lock: Lock) -> dict[str, str]:
    return {layer.key: layer.name for layer in taken(lock)} or {base.key(lock.base): "base"}


def known_layers(lock: Lock, store: Store) -> list[Layer]:
    """Return the layers that the store has; of the base all or none: `layers` brings them together."""
    above = (known(store, name, key) for key, name in above_base(lock).items())
    return [*_known_base(lock, store), *(layer for layer in above if layer)]


def _known_base(lock: Lock, store: Store) -> list[Layer]:
    if own := taken(lock):
        return [] if base.missing(lock.base, store) else own
    layer = known(store, "base", base.key(lock.base))
    return [layer] if layer else []


def named(lock: Lock, elsewhere: Mapping[str, Layer]) -> list[Layer]:
    """Return the layers `elsewhere`; of a registry's image, those that are there as the lock has them.

    Their key says what they unpack to, and not that the lock's digest is of a blob that does.
    """
    above = [replace(elsewhere[key], name=name, key=key) for key, name in above_base(lock).items() if key in elsewhere]
    return [*_named_base(lock, elsewhere), *above]


def _named_base(lock: Lock, elsewhere: Mapping[str, Layer]) -> list[Layer]:
    if own := taken(lock):
        return [layer for layer in own if layer.key in elsewhere and elsewhere[layer.key].digest == layer.digest]
    key = base.key(lock.base)
    return [replace(elsewhere[key], name="base", key=key)] if key in elsewhere else []


def made(lock: Lock, elsewhere: Mapping[str, Layer], bring: base.Bring | None) -> base.Made | None:
    """Return the base as it is `elsewhere`, where all of it is there and can be brought."""
    theirs = _named_base(lock, elsewhere)
    if bring is None or len(theirs) < len(_of_base(lock)):
        return None
    return base.Made(
        tuple(registry.Layer(each.media_type, each.digest, each.size, each.diff_id) for each in theirs), bring
    )


def layers(
    lock: Lock,
    store: Store,
    settings: Settings,
    progress: Progress,
    made: base.Made | None = None,
    there: Collection[str] = (),
) -> Iterator[Layer]:
    """Yield the layers whose keys are not `there`, from the bottom up, each when the store has it.

    `made` is the base where a trusted image has it. Raises BaseError, FetchError, SandboxError.
    """
    if not _of_base(lock).keys() <= set(there):
        yield from _base_layers(lock, store, settings, progress)
    for key in above_base(lock).keys() - set(there):
        yield known(store, INTERPRETER, key) or _interpreter(key, lock, store, settings, progress, made)


def _interpreter(
    key: str, lock: Lock, store: Store, settings: Settings, progress: Progress, made: base.Made | None
) -> Layer:
    below = tree(lock.foundation, store, settings, progress, made)
    rootfs: Future[Path] = Future()
    rootfs.set_result(below)
    cores = len(os.sched_getaffinity(0))
    with (
        timed(progress, f"compiling the library of interpreter {lock.interpreter.name}"),
        Compiler(rootfs, lock.interpreter.path, cores) as compiler,
    ):
        return interpreter_layer(store, key, lock, below, compiler)


def _base_layers(lock: Lock, store: Store, settings: Settings, progress: Progress) -> Sequence[Layer]:
    if own := taken(lock):
        base.fetch_layers(lock.base, store, settings, progress)
        return own
    if layers := _known_base(lock, store):
        return layers
    return [base_layer(store, base.key(lock.base), base.build(lock.base, store, settings, progress).diff_id)]


def taken(lock: Lock) -> list[Layer]:
    """The layers of a registry's image; none of another base. One that comes twice has two keys: it is there twice."""
    found = enumerate(lock.base.content.layers if lock.base.content else (), 1)
    return [
        Layer(
            f"base-{number}",
            digest_of_json(["registry", number, layer.diff_id]),
            layer.diff_id,
            layer.digest,
            layer.size,
            None,
            layer.oci_type,
        )
        for number, layer in found
    ]
