"""What a build starts from: the layers that the cell has anyway, of the wheels that it is compiled against."""

from __future__ import annotations

from collections.abc import Mapping

from imagegen import layers, recipe
from imagegen.builds.bench import Bench
from imagegen.builds.run import Stage
from imagegen.lock.model import Lock
from imagegen.matrix.recipe import Recipe


def stage(lock: Lock, recipes: Mapping[str, Recipe], bench: Bench) -> Stage:
    """The toolchain's image, in the store, for a lock with one build. Raises as `layers.assemble`."""
    toolchain = layers.assemble(recipe.toolchain(lock), bench.store, bench.settings, bench.progress)
    return Stage(lock, recipes, toolchain)
