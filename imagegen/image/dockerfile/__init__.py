"""Lock -> Dockerfile, and the folder that a plain build needs."""

from imagegen.image.dockerfile.dockerfile import Rendered, cache_of, reason, render, toolchain
from imagegen.image.dockerfile.folder import write, write_bake, write_builds

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
