"""imagegen wheels push: give wheels to the team's wheelhouse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import click

from imagegen.cli.app import App, pass_app
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.progress import human
from imagegen.core.text import counted, did_you_mean
from imagegen.plan.lock.built_wheel import BuiltWheel
from imagegen.wheels import artifacts, wheelhouse


@click.command("push")
@click.argument("patterns", nargs=-1, metavar="[NAME | KEY]...")
@click.option("--to", "destination", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@click.option("--dry-run", is_flag=True, help="Say what would be pushed, and push nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: for each wheel its key, and whether it was pushed.")
@pass_app
def command(app: App, *, patterns: tuple[str, ...], destination: str | None, dry_run: bool, as_json: bool) -> None:
    """Push the wheels of the store to a repository of a registry: all, or those named, * and ? allowed.

    Without --to, IMAGEGEN_WHEELHOUSE names the repository. A wheel that is there under the same key stays unchanged.
    """
    place = artifacts.place(app.settings, destination, "--to")
    if place is None:
        fix = "name a repository with --to, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to push to", code="usage-no-wheelhouse", fix=fix)
    wheels = list(_chosen(list(wheelhouse.every(app.store)), patterns))
    pushed: dict[str, bool] = {}
    with Client(app.settings) as client:
        team = artifacts.RemoteWheelhouse(place, client, app.settings)
        if wheels:
            team.reach()
        for wheel in wheels:
            pushed[wheel.key] = not team.has(wheel.key)
            if pushed[wheel.key] and not dry_run:
                team.push(wheel, app.store, app.progress)
            app.progress.say(f"{wheel.filename} ({human(wheel.size)}): {_outcome(pushed[wheel.key], dry_run)}")
    if as_json:
        keys = ("key", "name", "version", "filename", "sha256", "size")
        app.json(
            [{key: getattr(wheel, key) for key in keys} | {"pushed": pushed[wheel.key]} for wheel in wheels],
        )
    else:
        verb = "would be pushed" if dry_run else "pushed"
        app.progress.say(f"{sum(pushed.values())} of {counted(len(wheels), 'wheel')} {verb} to {team}")


def _outcome(pushed: bool, dry_run: bool) -> str:
    return ("would be pushed" if dry_run else "pushed") if pushed else "there already"


def _chosen(kept: list[BuiltWheel], patterns: Iterable[str]) -> Iterator[BuiltWheel]:
    """Raises UsageError for a pattern that no wheel has."""
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(_fits(wheel, pattern) for wheel in kept):
            fix = did_you_mean(pattern, {wheel.name for wheel in kept}) or "`imagegen wheels list` shows what is kept"
            raise UsageError(
                f'no wheel is kept here whose name or key is "{pattern}"', code="usage-unknown-wheel", fix=fix
            )
    yield from (wheel for wheel in kept if not patterns or any(_fits(wheel, pattern) for pattern in patterns))


def _fits(wheel: BuiltWheel, pattern: str) -> bool:
    return any(fnmatchcase(each, pattern) for each in (wheel.name, wheel.key, wheel.key.removeprefix("sha256:")))
