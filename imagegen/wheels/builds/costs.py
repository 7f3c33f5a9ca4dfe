"""The cost of compiling a component: measured here, else as its recipe states, else unknown."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers.plan import digest_of_json
from imagegen.lock.model import LockedBuild
from imagegen.spec.recipe import Cost, Recipe
from imagegen.wheels.throttle import BuildJob, learned


@dataclass(frozen=True)
class _MeasuredCost:
    """The fields of a Cost as the store keeps them; a recipe writes them in another form."""

    units: int
    seconds: float
    memory: int
    largest: int
    source: str


_COSTS = Cache("build-cost", _MeasuredCost)


def work(build: LockedBuild, recipe: Recipe, store: Store) -> BuildJob:
    """The build as its plan sees it."""
    measured = _COSTS.get(store, cost_key(build))
    return BuildJob(
        cost=Cost(**vars(measured)) if measured else recipe.cost,
        architectures=max(1, len(set(build.architectures))),
        jobs=recipe.jobs is not None,
        threads=recipe.threads is not None,
    )


def learn(build: LockedBuild, record: Mapping[str, Any], store: Store) -> None:
    """Record the cost of a finished build; an incomplete record changes nothing."""
    with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
        cost = learned(record, max(1, len(build.architectures)), "measured here")
        if cost.units > 0 and cost.memory > 0:
            _COSTS.put(store, cost_key(build), _MeasuredCost(**vars(cost)))


def cost_key(build: LockedBuild) -> str:
    """Return the key under which a store keeps the measured cost of a build."""
    return digest_of_json([build.name, build.version])
