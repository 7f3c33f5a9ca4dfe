"""imagegen wheels push and pull: copy wheels to and from the team's wheelhouse."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import click

from imagegen.cli.app import App, json_option, pass_app
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.oci import is_digest
from imagegen.core.progress import human
from imagegen.core.text import counted, did_you_mean
from imagegen.lock.builds import BuiltWheel
from imagegen.wheels import wheelhouse


@click.command("push")
@click.argument("patterns", nargs=-1, metavar="[NAME | KEY]...")
@click.option("--to", "destination", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@click.option("--dry-run", is_flag=True, help="Print the wheels that would be pushed, and push nothing.")
@json_option("Print JSON: for each wheel its key, and whether it was pushed.")
@pass_app
def push_wheels(app: App, *, patterns: tuple[str, ...], destination: str | None, dry_run: bool, as_json: bool) -> None:
    """Push all wheels of the store, or the named ones, to a repository of a registry; * and ? are allowed.

    Without --to, IMAGEGEN_WHEELHOUSE names the repository. A wheel that it has under the same key is not changed.
    """
    repository = wheelhouse.place(app.project.settings, destination, "--to")
    if repository is None:
        fix = "name a repository with --to, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to push to", code="usage-no-wheelhouse", fix=fix)
    wheels = list(_chosen(list(wheelhouse.every(app.project.store)), patterns))
    pushed: dict[str, bool] = {}
    with Client(app.project.settings) as client:
        team = wheelhouse.RemoteWheelhouse(repository, client, app.project.settings)
        if wheels:
            team.reach()
        for wheel in wheels:
            pushed[wheel.key] = not team.has(wheel.key)
            if pushed[wheel.key] and not dry_run:
                team.push(wheel, app.project.store, app.progress)
            app.progress.say(f"{wheel.filename} ({human(wheel.size)}): {_outcome(pushed[wheel.key], dry_run)}")
    if as_json:
        keys = ("key", "name", "version", "filename", "sha256", "size")
        app.json([{key: getattr(wheel, key) for key in keys} | {"pushed": pushed[wheel.key]} for wheel in wheels])
    else:
        verb = "would be pushed" if dry_run else "pushed"
        app.progress.say(f"{sum(pushed.values())} of {counted(len(wheels), 'wheel')} {verb} to {team}")


def _outcome(pushed: bool, dry_run: bool) -> str:
    return ("would be pushed" if dry_run else "pushed") if pushed else "already there"


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


@click.command("pull")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--cell", "cells", multiple=True, metavar="CELL", help="Every source build of CELL's lock.")
@click.option("--from", "source", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@json_option("Print JSON: for each key here, pulled, or absent.")
@pass_app
def pull_wheels(app: App, *, keys: tuple[str, ...], cells: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Pull wheels from a repository of a registry into the store, by their keys or for cells.

    Without --from, IMAGEGEN_WHEELHOUSE names the repository. Exit code 1 if neither the store nor the repository has a
    wheel.
    """
    repository = wheelhouse.place(app.project.settings, source, "--from")
    if repository is None:
        fix = "name a repository with --from, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to pull from", code="usage-no-wheelhouse", fix=fix)
    if not keys and not cells:
        raise UsageError("nothing to pull", code="usage-nothing-named", fix="name cells with --cell, or keys of wheels")
    requested = dict(_parse_keys(keys)) | dict(_build_keys(app, cells))
    outcomes: dict[str, str] = {}
    with Client(app.project.settings) as client:
        team = wheelhouse.RemoteWheelhouse(repository, client, app.project.settings)
        for key, name_and_version in requested.items():
            name = " ".join(name_and_version) if name_and_version else key
            if wheelhouse.known(app.project.store, key):
                outcomes[key] = "here"
            elif team.fetch(key, app.project.store, app.progress, required=name_and_version):
                outcomes[key] = "pulled"
            else:
                outcomes[key] = "absent"
            app.progress.say(f"{name}: {_OUTCOMES[outcomes[key]]}")
    if as_json:
        app.json(outcomes)
    else:
        counts = {outcome: list(outcomes.values()).count(outcome) for outcome in _OUTCOMES}
        app.progress.say(
            f"{counted(counts['pulled'], 'wheel')} pulled from {team}, {counts['here']} already in the store, "
            f"{counts['absent']} not found"
        )
    sys.exit(1 if "absent" in outcomes.values() else 0)


_OUTCOMES = {"here": "already in the store", "pulled": "pulled", "absent": "not found"}


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


def _build_keys(app: App, cells: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, str]]]:
    for pattern in cells:
        for cell in app.session.matrix.select(pattern, single=True):
            for build in app.session.lock_files.fresh(cell).builds:
                yield build.key, (build.name, build.version)
