"""Compile wheels, copy them to and from the team's wheelhouse, and remove them from the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.progress import human
from imagegen.core.text import did_you_mean
from imagegen.lock.builds import BuiltWheel
from imagegen.lock.model import Lock
from imagegen.oci.documents import is_digest
from imagegen.oci.registry import Reference
from imagegen.wheels import remote_wheelhouse, wheelhouse
from imagegen.wheels.builds import ensure

_YOUNG = 30 * 24 * 3600  # seconds
_OUTCOMES = {"here": "already in the store", "pulled": "pulled", "absent": "not found"}


def build_wheels(session: Session, component: str | None, pattern: str, builder: str | None) -> list[BuiltWheel]:
    """Compile the missing source builds of the cells' locks, or only the component; return their wheels."""
    project, gpus = session.project, tuple(session.matrix.gpus.values())
    wheels: list[BuiltWheel] = []
    for cell in session.matrix.select(pattern, single=True):
        lock, context = session.lock_files.fresh(cell), project.context_for(cell)
        names = _required(lock, component)
        missing = [build for build in wheelhouse.missing_builds(lock, project.store) if build.name in names]
        missing = list(ensure.pull_wheels(missing, context))
        ensure.compile_builds(lock, missing, cell, gpus, context, builder=builder)
        if not names:
            project.progress.say(f"{cell.id}: no wheel must be compiled")
        elif not missing:
            project.progress.say(f"{cell.id}: all compiled wheels are in the store")
        keys = [build.key for build in lock.builds if build.name in names]
        wheels += [wheel for key in keys if (wheel := wheelhouse.known(project.store, key))]
    return wheels


def push_wheels(
    project: ProjectContext, patterns: Iterable[str], destination: str | None, *, dry_run: bool
) -> tuple[list[tuple[BuiltWheel, bool]], str]:
    """Push the wheels of the store that match a pattern.

    Return each, with whether the repository lacked it, and the repository.
    """
    repository = _repository(project, destination, "--to", "push to")
    wheels = list(_chosen(list(wheelhouse.every(project.store)), patterns))
    pushed = []
    verb = "would be pushed" if dry_run else "pushed"
    with Client(project.settings) as client:
        team = remote_wheelhouse.RemoteWheelhouse(repository, client, project.settings)
        if wheels:
            team.reach()
        for wheel in wheels:
            is_new = not team.has(wheel.key)
            if is_new and not dry_run:
                team.push(wheel, project.store, project.progress)
            project.progress.say(f"{wheel.filename} ({human(wheel.size)}): {verb if is_new else 'already there'}")
            pushed.append((wheel, is_new))
    return pushed, str(team)


def pull_wheels(
    session: Session, keys: tuple[str, ...], cells: tuple[str, ...], source: str | None
) -> tuple[dict[str, str], str]:
    """Pull wheels by their keys, and the source builds of cells.

    Return for each key here, pulled, or absent; and the repository.
    """
    project = session.project
    repository = _repository(project, source, "--from", "pull from")
    if not keys and not cells:
        raise UsageError("nothing to pull", code="usage-nothing-named", fix="name cells with --cell, or keys of wheels")
    requested = dict(_parse_keys(keys)) | dict(_build_keys(session, cells))
    outcomes: dict[str, str] = {}
    with Client(project.settings) as client:
        team = remote_wheelhouse.RemoteWheelhouse(repository, client, project.settings)
        for key, name_and_version in requested.items():
            if wheelhouse.known(project.store, key):
                outcomes[key] = "here"
            elif team.fetch(key, project.store, project.progress, required=name_and_version):
                outcomes[key] = "pulled"
            else:
                outcomes[key] = "absent"
            name = " ".join(name_and_version) if name_and_version else key
            project.progress.say(f"{name}: {_OUTCOMES[outcomes[key]]}")
    return outcomes, str(team)


def remove_wheels(session: Session, names: tuple[str, ...], *, dry_run: bool) -> tuple[list[BuiltWheel], int]:
    """Remove the named wheels, or those that no lock needs, unused for 30 days; return them and the freed bytes."""
    store = session.project.store
    wheels = list(wheelhouse.every(store))
    named = [wheel for name in names for wheel in _find(name, wheels)] if names else _unneeded(session, wheels)
    removed = list({wheel.key: wheel for wheel in named}.values())
    if dry_run:
        return removed, wheelhouse.removable(store, removed)
    return removed, sum(wheelhouse.remove(store, wheel) for wheel in removed)


def _repository(project: ProjectContext, name: str | None, option: str, purpose: str) -> Reference:
    """Return the repository of the option or of IMAGEGEN_WHEELHOUSE. Raises UsageError if there is none."""
    repository = remote_wheelhouse.place(project.settings, name, option)
    if repository is None:
        fix = f"name a repository with {option}, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError(f"there is no wheelhouse to {purpose}", code="usage-no-wheelhouse", fix=fix)
    return repository


def _chosen(wheels: list[BuiltWheel], patterns: Iterable[str]) -> Iterator[BuiltWheel]:
    """Yield the wheels that match a pattern. Raises UsageError for a pattern that no wheel matches."""
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(_fits(wheel, pattern) for wheel in wheels):
            fix = did_you_mean(pattern, {wheel.name for wheel in wheels}) or "`imagegen wheels list` shows the wheels"
            raise UsageError(
                f'the store has no wheel with the name or key "{pattern}"', code="usage-unknown-wheel", fix=fix
            )
    yield from (wheel for wheel in wheels if not patterns or any(_fits(wheel, pattern) for pattern in patterns))


def _fits(wheel: BuiltWheel, pattern: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in (wheel.name, wheel.key, wheel.key.removeprefix("sha256:")))


def _parse_keys(keys: tuple[str, ...]) -> Iterator[tuple[str, None]]:
    for key in keys:
        whole = key if key.startswith("sha256:") else f"sha256:{key}"
        if not is_digest(whole):
            raise UsageError(
                f'"{key}" is not a key of a wheel',
                code="usage-invalid-value",
                fix="a key is sha256: and 64 lower-case hex digits",
            )
        yield whole, None


def _build_keys(session: Session, cells: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, str]]]:
    for pattern in cells:
        for cell in session.matrix.select(pattern, single=True):
            for build in session.lock_files.fresh(cell).builds:
                yield build.key, (build.name, build.version)


def _find(name: str, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    """Return the wheels with a name, file name or key. Raises UsageError if there are none."""
    matches = [
        wheel for wheel in wheels if name in (wheel.name, f"{wheel.name}=={wheel.version}", wheel.key, wheel.filename)
    ]
    if not matches:
        fix = did_you_mean(name, {wheel.name for wheel in wheels}) or "`imagegen wheels list` shows the wheels"
        raise UsageError(f'the store has no wheel "{name}"', code="usage-unknown-wheel", fix=fix)
    return matches


def _unneeded(session: Session, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    locks = [lock for cell in session.matrix.cells() if (lock := session.lock_files.find(cell))]
    needed = {build.key for lock in locks for build in lock.builds}
    return [
        wheel
        for wheel in wheels
        if wheel.key not in needed and wheelhouse.unused(session.project.store, wheel, time.time()) > _YOUNG
    ]


def _required(lock: Lock, component: str | None) -> set[str]:
    """Return the names of the lock's builds. Raises UsageError for another component."""
    names = {build.name for build in lock.builds}
    if component is None:
        return names
    if component not in names:
        summary = f"{lock.cell} does not compile {component}"
        fix = did_you_mean(component, names) or f"it compiles {', '.join(sorted(names)) or 'no component'}"
        raise UsageError(summary, fix=fix)
    return {component}
