"""Lock -> Dockerfile, and the folder that a plain build needs."""

from imagegen.recipe.bake import write_bake
from imagegen.recipe.dockerfile import Rendered, reason, render
from imagegen.recipe.folder import WORKER, write, write_builds
from imagegen.recipe.stages import cache_of, toolchain

__all__ = [
    "WORKER",
    "Rendered",
    "cache_of",
    "reason",
    "render",
    "toolchain",
    "write",
    "write_bake",
    "write_builds",
]
