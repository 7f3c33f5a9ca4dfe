"""A lock with source builds -> the lock with their wheels: from the wheelhouse, the team's, or a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from imagegen.core.config import Settings
from imagegen.core.errors import BuildError
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.plan.lock import builds
from imagegen.plan.lock.built_wheel import BuiltWheel
from imagegen.plan.lock.model import Lock, LockedBuild
from imagegen.wheels import artifacts, wheelhouse

Compiling = Callable[[Lock, Sequence[LockedBuild]], None]  # afterwards the wheelhouse has their wheels


def realise(lock: Lock, store: Store, settings: Settings, progress: Progress, compiling: Compiling | None) -> Lock:
    """The lock as it is assembled; one without builds is that already.

    What the wheelhouse lacks comes from the team's, where IMAGEGEN_WHEELHOUSE names one; `compiling` makes the rest,
    None where there is nothing to compile with.

    Raises BuildError where a wheel is lacking, FetchError where the team's wheelhouse fails, and as `compiling` does.
    """
    if not lock.builds:
        return lock
    if lacking := pulled(unbuilt(lock, store), store, settings, progress):
        if compiling is None:
            names = ", ".join(f"{build.name} {build.version}" for build in lacking)
            raise BuildError(
                f"{names} must be compiled first",
                code="source-build-required",
                why=f"{lock.cell} needs it, and no wheel with its key is kept here: {lacking[0].key}",
                fix=f"`imagegen wheels build --cell {lock.cell}` does that, with an engine",
            )
        compiling(lock, lacking)
    return builds.realised(lock, _known(lock, store))


def pulled(
    wanted: Sequence[LockedBuild], store: Store, settings: Settings, progress: Progress
) -> Sequence[LockedBuild]:
    """Bring what the team's wheelhouse has of these builds' wheels; returns those that it has not."""
    place = artifacts.place(settings) if wanted else None
    if place is None:
        return wanted
    with Client(settings) as client:
        team = artifacts.Team(place, client, settings)
        return [build for build in wanted if not _pull(build, team, store, progress)]


def _pull(build: LockedBuild, team: artifacts.Team, store: Store, progress: Progress) -> bool:
    found = team.fetch(build.key, store, progress, wanted=(build.name, build.version))
    if found:
        progress.say(f"{found.filename}: from the team's wheelhouse {team}")
    return found is not None


def unbuilt(lock: Lock, store: Store) -> list[LockedBuild]:
    """The lock's builds whose wheels the wheelhouse lacks."""
    known = _known(lock, store)
    return [build for build in lock.builds if build.name not in known]


def here(lock: Lock, store: Store) -> tuple[Lock, list[LockedBuild]]:
    """The lock with the wheels of its builds, and nothing; where the wheelhouse lacks some, as it is, and those."""
    lacking = unbuilt(lock, store)
    return (lock if lacking or not lock.builds else builds.realised(lock, _known(lock, store))), lacking


def _known(lock: Lock, store: Store) -> dict[str, BuiltWheel]:
    found = {build.name: wheelhouse.known(store, build.key) for build in lock.builds}
    return {name: wheel for name, wheel in found.items() if wheel}
