"""The layers under the venv, from the bottom up; every other module takes their order from here.

1. The base: Debian's packages as one layer, or the unchanged layers of a registry's image.
2. Debian packages that are added above the base, as at most one layer.
3. A standalone interpreter, as one layer.
"""

from __future__ import annotations

from imagegen.image import base
from imagegen.image.file_tree import bottom_key
from imagegen.image.layers.layer import Layer
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
