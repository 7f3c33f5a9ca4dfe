"""Get the wheels of a lock's source builds: from the wheelhouse, a remote wheelhouse, or a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from imagegen.core.context import Context
from imagegen.core.errors import BuildError
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.types import Gpu
from imagegen.plan.lock import builds
from imagegen.plan.lock.builds import BuiltWheel
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.plan.matrix.model import Cell
from imagegen.run.engine import Engine
from imagegen.wheels import wheelhouse
from imagegen.wheels.builds.compile import compile_all
from imagegen.wheels.builds.environment import BuildEnvironment


def ensure_wheels(
    lock: Lock,
    cell: Cell,
    gpus: Sequence[Gpu],
    context: Context,
    *,
    engine: Engine | None = None,
    builder: str | None = None,
) -> Lock:
    """Return the lock with the wheels of its source builds, compiled where no wheelhouse has them.

    Builds run on the buildx `builder` if named, else on `engine`, or on one that is connected to when something must be
    compiled; `gpus` are all that the matrix knows. Raises BuildError, FetchError, EngineError.
    """
    missing = pull_wheels(missing_builds(lock, context.store), context)
    compile_builds(lock, missing, cell, gpus, context, engine=engine, builder=builder)
    return builds.with_built_wheels(lock, _local(lock, context.store))


def require_wheels(lock: Lock, context: Context) -> Lock:
    """Return the lock with the wheels of its source builds, from the wheelhouses alone.

    Raises BuildError where a wheel must be compiled first, FetchError where the remote wheelhouse fails.
    """
    if missing := pull_wheels(missing_builds(lock, context.store), context):
        names = ", ".join(f"{build.name} {build.version}" for build in missing)
        raise BuildError(
            f"{names} must be compiled first",
            code="source-build-required",
            why=f"{lock.cell} needs it, and no wheel with its key is kept here: {missing[0].key}",
            fix=f"`imagegen wheels build --cell {lock.cell}` does that, with an engine",
        )
    return builds.with_built_wheels(lock, _local(lock, context.store))


def compile_builds(
    lock: Lock,
    missing: Sequence[LockedBuild],
    cell: Cell,
    gpus: Sequence[Gpu],
    context: Context,
    *,
    engine: Engine | None = None,
    builder: str | None = None,
) -> None:
    """Compile the `missing` builds of the lock into the wheelhouse; without any, nothing is connected to."""
    if not missing:
        return
    with nullcontext(engine) if engine else Engine.connect(context.settings, context.progress) as found:
        compile_all(lock, missing, cell, gpus, BuildEnvironment(found, builder, context))


def pull_wheels(required: Sequence[LockedBuild], context: Context) -> Sequence[LockedBuild]:
    """Download the wheels that the remote wheelhouse of IMAGEGEN_WHEELHOUSE has; return the builds that it lacks."""
    place = wheelhouse.place(context.settings) if required else None
    if place is None:
        return required
    with Client(context.settings) as client:
        team = wheelhouse.RemoteWheelhouse(place, client, context.settings)
        return [build for build in required if not _pull(build, team, context.store, context.progress)]


def _pull(build: LockedBuild, team: wheelhouse.RemoteWheelhouse, store: Store, progress: Progress) -> bool:
    found = team.fetch(build.key, store, progress, required=(build.name, build.version))
    if found:
        progress.say(f"{found.filename}: from the remote wheelhouse {team}")
    return found is not None


def missing_builds(lock: Lock, store: Store) -> list[LockedBuild]:
    """Return the lock's builds whose wheels the local wheelhouse lacks."""
    local = _local(lock, store)
    return [build for build in lock.builds if build.name not in local]


def with_local_wheels(lock: Lock, store: Store) -> tuple[Lock, list[LockedBuild]]:
    """Return (lock with built wheels, []) if the wheelhouse has them all, else (lock unchanged, missing builds)."""
    missing = missing_builds(lock, store)
    return (lock if missing else builds.with_built_wheels(lock, _local(lock, store))), missing


def _local(lock: Lock, store: Store) -> dict[str, BuiltWheel]:
    found = {build.name: wheelhouse.known(store, build.key) for build in lock.builds}
    return {name: wheel for name, wheel in found.items() if wheel}
