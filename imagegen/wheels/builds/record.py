"""The record of a compiled wheel: the file, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from imagegen.core.errors import BuildError
from imagegen.core.progress import human
from imagegen.core.store import Store
from imagegen.plan.lock.builds import BuiltWheel
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.wheels.throttle import JobPlan, duration

_CHUNK = 1 << 20  # bytes


def kept(
    path: Path, out: Path, build: LockedBuild, lock: Lock, plan: JobPlan, done: JobPlan, store: Store, now: float
) -> BuiltWheel:
    """The wheel, with its file and its log in the store. `plan` is the first one, `done` what it succeeded with.

    Raises BuildError where the worker left no record.
    """
    digest, size = _blob(store, path)
    log = out / "build.log"
    record = {
        **_of_worker(out / "record.json", build),
        **_made_of(build, lock),
        "made": now,
        "planned": asdict(plan),
        "done": {"jobs": done.jobs, "threads": done.threads},
        "log": _blob(store, log)[0] if log.is_file() else None,
    }
    return BuiltWheel(build.key, build.name, build.version, path.name, digest.removeprefix("sha256:"), size, record)


def sentence(wheel: BuiltWheel, plan: JobPlan) -> str:
    """Return the measured cost in words, beside the expected one."""
    record = wheel.record
    expected = f" ({duration(plan.seconds)} planned)" if plan.seconds is not None else ""
    return (
        f"{wheel.filename}: {record['units']} units in {duration(record['seconds'])}{expected}, "
        f"{human(record['memory'])} at the peak ({human(plan.memory)} planned), "
        f"its largest process took {human(record['largest'])} ({human(plan.largest)} planned)"
    )


def _of_worker(path: Path, build: LockedBuild) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**found, **{name: found[name] for name in ("units", "seconds", "memory", "largest")}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f"{build.name} {build.version} left no record of its build", code="source-build-no-record", why=str(error)
        ) from error


def _made_of(build: LockedBuild, lock: Lock) -> Mapping[str, Any]:
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    return {
        "python": lock.python,
        "platform": lock.platform,
        "torch": versions.get("torch"),
        "cuda": lock.axes.get("cuda"),
        "architectures": list(build.architectures),
        "source": asdict(build.source),
        "git": asdict(build.git) if build.git else None,
        "submodules": [asdict(each) for each in build.submodules],
        "patches": [asdict(each) for each in build.patches],
        "against": {name: versions[name] for name in build.against if name in versions},
        "build_requires": {each.name: each.version for each in build.build_requires},
        "base": lock.base.name,
    }


def _blob(store: Store, path: Path) -> tuple[str, int]:
    with path.open("rb") as file, store.writer() as writer:
        while chunk := file.read(_CHUNK):
            writer.write(chunk)
        return writer.commit(), writer.size
