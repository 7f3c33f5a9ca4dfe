"""Get the wheels of a lock's source builds: from the wheelhouse, a remote wheelhouse, or a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from imagegen.core.context import Context
from imagegen.core.errors import BuildError
from imagegen.core.gpu import Gpu
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.lock.builds import with_built_wheels
from imagegen.lock.model import Lock, LockedBuild
from imagegen.spec.model import Cell
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.remote_wheelhouse import RemoteWheelhouse, place
from imagegen.wheels.wheelhouse import local_wheels, missing_builds

if TYPE_CHECKING:
    from imagegen.engine import Engine
from imagegen.wheels.builds.schedule import compile_all


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
    return with_built_wheels(lock, local_wheels(lock, context.store))


def require_wheels(lock: Lock, context: Context) -> Lock:
    """Return the lock with the wheels of its source builds, only from the wheelhouses.

    Raises BuildError where a wheel must be compiled first, FetchError where the remote wheelhouse fails.
    """
    if missing := pull_wheels(missing_builds(lock, context.store), context):
        names = ", ".join(f"{build}" for build in missing)
        raise BuildError(
            f"{names} must be compiled first",
            code="source-build-required",
            why=f"{lock.cell} needs it, and no wheel with its key is kept here: {missing[0].key}",
            fix=f"`imagegen wheels build --cell {lock.cell}` does that, with an engine",
        )
    return with_built_wheels(lock, local_wheels(lock, context.store))


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
    from imagegen.engine import Engine  # late: few images have wheels to compile

    with nullcontext(engine) if engine else Engine.connect(context.settings, context.progress) as connected:
        compile_all(lock, missing, cell, gpus, BuildEnvironment(connected, builder, context))


def pull_wheels(required: Sequence[LockedBuild], context: Context) -> Sequence[LockedBuild]:
    """Download the wheels that the remote wheelhouse of IMAGEGEN_WHEELHOUSE has; return the builds that it lacks."""
    repository = place(context.settings) if required else None
    if repository is None:
        return required
    with Client(context.settings) as client:
        team = RemoteWheelhouse(repository, client, context.settings)
        return [build for build in required if not _pull(build, team, context.store, context.progress)]


def _pull(build: LockedBuild, team: RemoteWheelhouse, store: Store, progress: Progress) -> bool:
    wheel = team.fetch(build.key, store, progress, required=(build.name, build.version))
    if wheel:
        progress.say(f"{wheel.filename}: from the remote wheelhouse {team}")
    return wheel is not None
