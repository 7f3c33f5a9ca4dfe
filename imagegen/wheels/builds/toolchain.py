"""The image that a build starts from: the cell's own layers with the wheels that it is compiled against."""

from __future__ import annotations

from collections.abc import Mapping

from imagegen.image import dockerfile as recipe
from imagegen.image import layers
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.recipe import Recipe
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.builds.run import Stage


def stage(lock: Lock, recipes: Mapping[str, Recipe], build_environment: BuildEnvironment) -> Stage:
    """The toolchain's image, in the store, for a lock with one build. Raises as `layers.assemble`."""
    toolchain = layers.assemble(recipe.toolchain(lock), build_environment.context)
    return Stage(lock, recipes, toolchain)
