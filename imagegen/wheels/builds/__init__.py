"""Running source builds: the stage of the cell's Dockerfile, on a builder, within its memory; into the wheelhouse."""

from imagegen.wheels.builds.compile import (
    compile_all,
    compile_builds,
    ensure_wheels,
    missing_builds,
    pull_wheels,
    require_wheels,
    with_local_wheels,
)
from imagegen.wheels.builds.environment import BuildEnvironment

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
