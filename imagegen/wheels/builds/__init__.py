"""Running source builds: the stage of the cell's Dockerfile, on a builder, within its memory; into the wheelhouse."""

from typing import TYPE_CHECKING

from imagegen.core.lazy import lazy_names

if TYPE_CHECKING:
    from imagegen.wheels.builds.compile import compile_all, compile_builds, ensure_wheels, pull_wheels, require_wheels
    from imagegen.wheels.builds.environment import BuildEnvironment
    from imagegen.wheels.builds.local import missing_builds, with_local_wheels

__all__ = [
    "BuildEnvironment",
    "compile_all",
    "compile_builds",
    "ensure_wheels",
    "missing_builds",
    "pull_wheels",
    "require_wheels",
    "with_local_wheels",
]

__getattr__ = lazy_names(
    __name__,
    {
        "compile": ("compile_all", "compile_builds", "ensure_wheels", "pull_wheels", "require_wheels"),
        "environment": ("BuildEnvironment",),
        "local": ("missing_builds", "with_local_wheels"),
    },
)
