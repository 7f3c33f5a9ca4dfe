"""The layers under the venv, from the bottom up, in the one order that all of imagegen takes from here.

1. The base: Debian's packages as one layer, the layers of a registry's image as they are.
2. Debian packages that are added above the base, as at most one layer.
3. A standalone interpreter, as one layer.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from imagegen.core import registry
from imagegen.core.config import Settings
from imagegen.core.progress import Progress, timed
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.inputs.foundation import bottom_key, packages_layer, tree
from imagegen.image.layers.bytecode import Compiler
from imagegen.image.layers.layer import Layer, interpreter_layer, known, tar_layer
from imagegen.image.layers.plan import INTERPRETER, PACKAGES, digest_of_json, interpreter_layer_key
from imagegen.plan.lock.model import Lock


def names(lock: Lock) -> dict[str, str]:
    """Return key -> name of every layer under the venv, from the bottom up."""
    return _of_base(lock) | above_base(lock)


def above_base(lock: Lock) -> dict[str, str]:
    """Return key -> name of the layers between base and venv, from the bottom up; imagegen makes each of them."""
    found = {bottom_key(lock.foundation): PACKAGES} if lock.foundation.added else {}
    return found | ({interpreter_layer_key(lock): INTERPRETER} if lock.interpreter.file else {})


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
    """Return base and packages as they are `elsewhere`, where all of both is there and can be brought."""
    theirs = [layer for layer in named(lock, elsewhere) if layer.name != INTERPRETER]
    if bring is None or len(theirs) < len(_of_base(lock)) + bool(lock.foundation.added):
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

    `made` is base and packages where a trusted image has them. Raises BaseError, FetchError, SandboxError.
    """
    if not _of_base(lock).keys() <= set(there):
        yield from _base_layers(lock, store, settings, progress)
    for key, name in above_base(lock).items():
        if key in there:
            continue
        if layer := known(store, name, key):
            yield layer
        elif name == PACKAGES:
            tar = packages_layer(lock.foundation, store, settings, progress)
            yield tar_layer(store, PACKAGES, key, tar.diff_id)
        else:
            yield _interpreter(key, lock, store, settings, progress, made)


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
    built = base.build(lock.base, store, settings, progress)
    return [tar_layer(store, "base", base.key(lock.base), built.diff_id)]


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
