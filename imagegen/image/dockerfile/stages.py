"""The stages of source builds: the wheels that they compile against, and the inputs of each build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from imagegen.core.epoch import EPOCH
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.plan.matrix.recipe import Recipe

_SPEC_FORMAT = 2  # of what incontainer/worker/build.py reads
_HEX = 12  # digits of the key in the cache's name


def toolchain(lock: Lock) -> Lock:
    """Return the lock of the stage that every build starts from: the wheels that builds of this lock
    compile against.
    """
    names = {name for build in lock.builds for name in build.against}
    file_conflicts = [
        replace(each, over=over)
        for each in lock.file_conflicts
        if each.distribution in names and (over := tuple(name for name in each.over if name in names))
    ]
    return replace(
        lock,
        wheels=tuple(wheel for wheel in lock.wheels if wheel.name in names),
        file_conflicts=tuple(file_conflicts),
        builds=(),
        record=None,
    )


def cache_of(build: LockedBuild) -> str:
    """The id of the cache mount that keeps a build's objects until it has succeeded."""
    return f"imagegen-{build.key.removeprefix('sha256:')[:_HEX]}"


def spec(build: LockedBuild, recipe: Recipe) -> Mapping[str, Any]:
    """Return the worker's input: everything that decides the wheel, and how to pass the number of
    jobs, which does not.
    """
    return {
        "format": _SPEC_FORMAT,
        "name": build.name,
        "version": build.version,
        "source": build.source.filename,
        "build_requires": [wheel.file.filename for wheel in build.build_requires],
        "env": dict(sorted(build.env.items())),
        "jobs": recipe.jobs,
        "threads": recipe.threads,
        "modules": list(build.modules),
        "units": recipe.cost.units if recipe.cost else None,
        "epoch": EPOCH,
    }
