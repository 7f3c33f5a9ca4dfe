"""Lock -> Dockerfile, and the folder that a plain build needs."""

from imagegen.image.dockerfile.bake import write_bake
from imagegen.image.dockerfile.dockerfile import Rendered, reason, render
from imagegen.image.dockerfile.folder import write, write_builds
from imagegen.image.dockerfile.stages import cache_of, toolchain

__all__ = [
    "Rendered",
    "cache_of",
    "reason",
    "render",
    "toolchain",
    "write",
    "write_bake",
    "write_builds",
]
