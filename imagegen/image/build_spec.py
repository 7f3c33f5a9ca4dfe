"""Make the lock of the stage in which source builds run, and a build's specification for the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from imagegen.core.image_format import EPOCH
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.recipe import Recipe

_SPEC_FORMAT = 2  # of the input of checks/worker/build.py
_HEX = 12  # digits of the key in the cache's name


def toolchain(lock: Lock) -> Lock:
    """Return the lock of the stage that every build starts from, with the wheels that the builds compile against."""
    names = {name for build in lock.builds for name in build.against}
    file_conflicts = [
        replace(file_conflict, over=over)
        for file_conflict in lock.file_conflicts
        if file_conflict.distribution in names and (over := tuple(name for name in file_conflict.over if name in names))
    ]
    return replace(
        lock,
        wheels=tuple(wheel for wheel in lock.wheels if wheel.name in names),
        file_conflicts=tuple(file_conflicts),
        builds=(),
        ldconfig=(),
        record=None,
    )


def cache_of(build: LockedBuild) -> str:
    """The id of the cache mount that keeps a build's objects until it has succeeded."""
    return f"imagegen-{build.key.removeprefix('sha256:')[:_HEX]}"


def spec(build: LockedBuild, recipe: Recipe) -> Mapping[str, Any]:
    """Return the worker's input: everything that decides the wheel, and how to pass the number of jobs."""
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
