"""Store a compiled wheel with the record of its build."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from imagegen.core.data import parse_json
from imagegen.core.errors import BuildError
from imagegen.core.progress import human
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers.plan import digest_of_json
from imagegen.lock.builds import BuiltWheel
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.recipe import Cost, Recipe
from imagegen.wheels.throttle import BuildJob, JobPlan, duration, learned

_CHUNK = 1 << 20  # bytes


def store_wheel(
    path: Path, out: Path, build: LockedBuild, lock: Lock, plan: JobPlan, finished: JobPlan, store: Store, now: float
) -> BuiltWheel:
    """Store file and log of a wheel, and return it. `plan` is the first plan, `finished` the one that succeeded.

    Raises BuildError where the worker left no record.
    """
    digest, size = _blob(store, path)
    log = out / "build.log"
    record = {
        **_read_record(out / "record.json", build),
        **_describe_inputs(build, lock),
        "made": now,
        "planned": asdict(plan),
        "done": {"jobs": finished.jobs, "threads": finished.threads},
        "log": _blob(store, log)[0] if log.is_file() else None,
    }
    return BuiltWheel(build.key, build.name, build.version, path.name, digest.removeprefix("sha256:"), size, record)


def describe_cost(wheel: BuiltWheel, plan: JobPlan) -> str:
    """Return the measured and the expected cost in words."""
    record = wheel.record
    expected = f" ({duration(plan.seconds)} planned)" if plan.seconds is not None else ""
    return (
        f"{wheel.filename}: {record['units']} units in {duration(record['seconds'])}{expected}, "
        f"{human(record['memory'])} at the peak ({human(plan.memory)} planned), "
        f"its largest process took {human(record['largest'])} ({human(plan.largest)} planned)"
    )


def _read_record(path: Path, build: LockedBuild) -> Mapping[str, Any]:
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
        units, seconds, memory, largest = (record[name] for name in ("units", "seconds", "memory", "largest"))
        # The worker samples twice a second and may miss short processes; the kernel records the largest one.
        return {**record, "units": units, "seconds": seconds, "memory": max(memory, largest), "largest": largest}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f"{build} left no record of its build", code="source-build-no-record", why=str(error)
        ) from error


def _describe_inputs(build: LockedBuild, lock: Lock) -> Mapping[str, Any]:
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    return {
        "python": lock.python,
        "platform": lock.platform,
        "torch": versions.get("torch"),
        "cuda": lock.axes.get("cuda"),
        "architectures": list(build.architectures),
        "source": asdict(build.source),
        "git": asdict(build.git) if build.git else None,
        "submodules": [asdict(submodule) for submodule in build.submodules],
        "patches": [asdict(patch) for patch in build.patches],
        "against": {name: versions[name] for name in build.against if name in versions},
        "build_requires": {require.name: require.version for require in build.build_requires},
        "base": lock.base.name,
    }


def _blob(store: Store, path: Path) -> tuple[str, int]:
    with path.open("rb") as file, store.writer() as writer:
        while chunk := file.read(_CHUNK):
            writer.write(chunk)
        return writer.commit(), writer.size


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
