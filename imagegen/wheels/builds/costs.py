"""The cost of compiling a component: measured here, else as its recipe states, else unknown."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any

from imagegen.core.store import Store
from imagegen.image.layers.plan import digest_of_json
from imagegen.plan.lock.model import LockedBuild
from imagegen.plan.matrix.recipe import Cost, Recipe
from imagegen.wheels.throttle import BuildJob, learned

_KIND = "build-cost"  # records of the store
_FIELDS = {each.name for each in fields(Cost)}


def work(build: LockedBuild, recipe: Recipe, store: Store) -> BuildJob:
    """The build as its plan sees it."""
    found = store.recall(_KIND, _key(build))
    return BuildJob(
        # Another version of imagegen may have written it.
        cost=Cost(**found) if found and found.keys() == _FIELDS else recipe.cost,
        architectures=max(1, len(set(build.architectures))),
        jobs=recipe.jobs is not None,
        threads=recipe.threads is not None,
    )


def learn(build: LockedBuild, record: Mapping[str, Any], store: Store) -> None:
    """Record the cost of a finished build; an incomplete record changes nothing."""
    with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
        cost = learned(record, max(1, len(build.architectures)), "measured here")
        if cost.units > 0 and cost.memory > 0:
            store.remember(_KIND, _key(build), asdict(cost))


def _key(build: LockedBuild) -> str:
    return digest_of_json([build.name, build.version])
