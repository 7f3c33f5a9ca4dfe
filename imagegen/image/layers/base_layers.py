"""The layers under the venv, from the bottom up; every other module takes their order from here.

1. The base: Debian's packages as one layer, or the unchanged layers of a registry's image.
2. Debian packages that are added above the base, as at most one layer.
3. A standalone interpreter, as one layer.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from imagegen.core.context import Context
from imagegen.core.progress import timed
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.file_tree import bottom_key, packages_layer, tree
from imagegen.image.layers.byte_code import Compiler
from imagegen.image.layers.layer import Layer, interpreter_layer, stored, tar_layer
from imagegen.image.layers.plan import INTERPRETER, PACKAGES, LayerPlan, digest_of_json, interpreter_layer_key
from imagegen.lock.model import Lock


def plan_base(lock: Lock) -> tuple[LayerPlan, ...]:
    """Return the plan of every layer under the venv, from the bottom up."""
    below = [LayerPlan(layer.name, (), layer.key) for layer in from_image(lock)]
    return (*(below or [LayerPlan("base", (), base.key(lock.base))]), *plan_above_base(lock))


def plan_above_base(lock: Lock) -> tuple[LayerPlan, ...]:
    """Return the plan of the layers between base and venv, from the bottom up; imagegen builds each of them."""
    packages = [LayerPlan(PACKAGES, (), bottom_key(lock.foundation))] if lock.foundation.added else []
    interpreter = [LayerPlan(INTERPRETER, (), interpreter_layer_key(lock))] if lock.interpreter.file else []
    return (*packages, *interpreter)


def cached_base(lock: Lock, store: Store) -> list[Layer]:
    """Return the base's layers from the store, all or none, since `build_base` fetches them together."""
    if base_layers := from_image(lock):
        return [] if base.missing(lock.base, store) else base_layers
    layer = stored(store, "base", base.key(lock.base))
    return [layer] if layer else []


def build_base(
    lock: Lock, context: Context, prebuilt: base.PrebuiltBase | None = None, present: Collection[str] = ()
) -> Iterator[Layer]:
    """Yield the layers whose keys are not in `present`, from the bottom up, each when the store has it.

    `prebuilt` is the base from a trusted source, if any. Raises BaseError, FetchError, SandboxError.
    """
    above = plan_above_base(lock)
    if not {part.key for part in plan_base(lock)} - {part.key for part in above} <= set(present):
        yield from _base_layers(lock, context)
    for part in above:
        if part.key in present:
            continue
        if layer := stored(context.store, part.name, part.key):
            yield layer
        elif part.name == PACKAGES:
            tar = packages_layer(lock.foundation, context)
            yield tar_layer(context.store, PACKAGES, part.key, tar.diff_id)
        else:
            yield _interpreter(part.key, lock, context, prebuilt)


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


def _base_layers(lock: Lock, context: Context) -> Sequence[Layer]:
    if base_layers := from_image(lock):
        base.fetch_layers(lock.base, context)
        return base_layers
    if layers := cached_base(lock, context.store):
        return layers
    built = base.build(lock.base, context)
    return [tar_layer(context.store, "base", base.key(lock.base), built.diff_id)]


def from_image(lock: Lock) -> list[Layer]:
    """Return the layers of the registry image that is the base; none for another base.

    The number is part of the key: a layer that occurs twice in the image has two keys.
    """
    numbered_layers = enumerate(lock.base.content.layers if lock.base.content else (), 1)
    return [
        Layer(
            layer.oci_type,
            layer.digest,
            layer.size,
            layer.diff_id,
            f"base-{number}",
            digest_of_json(["registry", number, layer.diff_id]),
        )
        for number, layer in numbered_layers
    ]
