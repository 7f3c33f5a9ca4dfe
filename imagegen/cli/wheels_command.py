"""imagegen wheels: what no index serves."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

import click

from imagegen.cli.app import App, Table, json_option, pass_app
from imagegen.cli.build_command import builder_option
from imagegen.cli.commands import CommandGroup
from imagegen.cli.wheels_find import find_wheels
from imagegen.core.context import Context
from imagegen.core.errors import UsageError
from imagegen.core.net import Client
from imagegen.core.oci.types import is_digest
from imagegen.core.progress import human
from imagegen.core.text import counted, did_you_mean, shown
from imagegen.plan.lock.builds import BuiltWheel
from imagegen.plan.lock.model import Lock
from imagegen.wheels import builds, wheelhouse


@click.group("wheels", cls=CommandGroup)
def command() -> None:
    """Find, build, list, push, pull and remove wheels that no index serves."""


command.add_command(find_wheels)


# imagegen wheels list: the wheels that were compiled or pulled.

_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


@command.command("list")
@json_option()
@pass_app
def list_wheels(app: App, *, as_json: bool) -> None:
    """List the wheels of the store: torch, Python, GPUs, size, age, key."""
    wheels = list(wheelhouse.every(app.store))
    if as_json:
        app.json([dataclasses.asdict(wheel) for wheel in wheels])
        return
    table = Table("wheel", "version", "torch", "python", "GPUs", "size", "made", "key")
    for wheel in wheels:
        made = _age(wheel.record.get("made"), time.time())
        size = human(wheel.size)
        table.add_row(wheel.name, wheel.version, *map(_cell, _facts(wheel)), size, made, wheel.key)
    if wheels:
        table.print(app.out)
    else:
        app.progress.say("no wheel is kept here: `imagegen wheels build` compiles what a cell's lock wants compiled")


def _facts(wheel: BuiltWheel) -> tuple[Any, ...]:
    """Return torch, Python and architectures of a wheel's record, as far as it has them: other programs may write
    records.
    """
    architectures = wheel.record.get("architectures")
    gpus = " ".join(map(str, architectures)) if isinstance(architectures, list | tuple) else None
    return wheel.record.get("torch"), wheel.record.get("python"), gpus


def _cell(fact: Any) -> str:
    return shown(str(fact)) if fact else "-"


def _age(made: Any, now: float) -> str:
    """Return an age as text: "3 days"."""
    if not isinstance(made, int | float) or not 0 <= made < 1 << 40:
        return "-"
    passed = max(0.0, now - made)
    for unit, seconds in _UNITS:
        if (number := int(passed // seconds)) > 0:
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"


# imagegen wheels build: compile the wheels that a cell's lock needs.


@command.command("build")
@click.argument("component", required=False)
@click.option("--cell", "pattern", required=True, metavar="CELL", help="The cell whose lock says what is compiled.")
@builder_option
@json_option("Print JSON: the wheels, with the record of each build.")
@pass_app
def build_wheels(app: App, *, component: str | None, pattern: str, builder: str | None, as_json: bool) -> None:
    """Compile COMPONENT, or every missing source build of CELL's lock.

    The plan is printed first. An interrupted build resumes. Prints each wheel's key and file name.
    """
    wheels = []
    for cell in app.matrix.select(pattern):
        lock = app.fresh_lock(cell)
        names = _required(lock, component)
        settings, gpus = app.settings_for(cell), tuple(app.matrix.gpus.values())
        missing = [build for build in builds.missing_builds(lock, app.store) if build.name in names]
        missing = list(builds.pull_wheels(missing, Context(app.store, settings, app.progress)))
        builds.compile_builds(lock, missing, cell, gpus, Context(app.store, settings, app.progress), builder=builder)
        if not missing and names:
            app.progress.say(f"{cell.id}: all compiled wheels are there")
        elif not names:
            app.progress.say(f"{cell.id}: nothing has to be compiled, since wheels fit")
        keys = [build.key for build in lock.builds if build.name in names]
        wheels += [wheel for key in keys if (wheel := wheelhouse.known(app.store, key))]
    if as_json:
        app.json([asdict(wheel) for wheel in wheels])
        return
    for wheel in wheels:
        click.echo(f"{wheel.key} {wheel.filename}")


def _required(lock: Lock, component: str | None) -> set[str]:
    """Names of the lock's builds. Raises UsageError for a component that is none of them."""
    names = {build.name for build in lock.builds}
    if component is None:
        return names
    if component not in names:
        what = f"{lock.cell} does not have {component} compiled"
        fix = did_you_mean(component, names) or f"it has {', '.join(sorted(names)) or 'nothing'} compiled"
        raise UsageError(what, fix=fix)
    return {component}


# imagegen wheels push: give wheels to the team's wheelhouse.


@command.command("push")
@click.argument("patterns", nargs=-1, metavar="[NAME | KEY]...")
@click.option("--to", "destination", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@click.option("--dry-run", is_flag=True, help="Say what would be pushed, and push nothing.")
@json_option("Print JSON: for each wheel its key, and whether it was pushed.")
@pass_app
def push_wheels(app: App, *, patterns: tuple[str, ...], destination: str | None, dry_run: bool, as_json: bool) -> None:
    """Push the wheels of the store to a repository of a registry: all, or those named, * and ? allowed.

    Without --to, IMAGEGEN_WHEELHOUSE names the repository. A wheel that is there under the same key stays unchanged.
    """
    place = wheelhouse.place(app.settings, destination, "--to")
    if place is None:
        fix = "name a repository with --to, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to push to", code="usage-no-wheelhouse", fix=fix)
    wheels = list(_chosen(list(wheelhouse.every(app.store)), patterns))
    pushed: dict[str, bool] = {}
    with Client(app.settings) as client:
        team = wheelhouse.RemoteWheelhouse(place, client, app.settings)
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
    return ("would be pushed" if dry_run else "pushed") if pushed else "already there"


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


# imagegen wheels pull: take wheels from the team's wheelhouse.


@command.command("pull")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--cell", "cells", multiple=True, metavar="CELL", help="Every source build of CELL's lock.")
@click.option("--from", "source", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@json_option("Print JSON: for each key here, pulled, or absent.")
@pass_app
def pull_wheels(app: App, *, keys: tuple[str, ...], cells: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Pull wheels from a repository of a registry into the store, by their keys or for cells.

    Without --from, IMAGEGEN_WHEELHOUSE names the repository. Exit code 1 when it lacks one that the store lacks too.
    """
    place = wheelhouse.place(app.settings, source, "--from")
    if place is None:
        fix = "name a repository with --from, or with IMAGEGEN_WHEELHOUSE"
        raise UsageError("there is no wheelhouse to pull from", code="usage-no-wheelhouse", fix=fix)
    if not keys and not cells:
        raise UsageError("nothing to pull", code="usage-nothing-named", fix="name cells with --cell, or keys of wheels")
    wanted = dict(_of_keys(keys)) | dict(_of_cells(app, cells))
    found: dict[str, str] = {}
    with Client(app.settings) as client:
        team = wheelhouse.RemoteWheelhouse(place, client, app.settings)
        for key, named in wanted.items():
            name = " ".join(named) if named else key
            if wheelhouse.known(app.store, key):
                found[key] = "here"
            elif team.fetch(key, app.store, app.progress, required=named):
                found[key] = "pulled"
            else:
                found[key] = "absent"
            app.progress.say(f"{name}: {_OUTCOMES[found[key]]}")
    if as_json:
        app.json(found)
    else:
        counts = {outcome: list(found.values()).count(outcome) for outcome in _OUTCOMES}
        app.progress.say(
            f"{counted(counts['pulled'], 'wheel')} pulled from {team}, {counts['here']} here already, "
            f"{counts['absent']} not there"
        )
    sys.exit(1 if "absent" in found.values() else 0)


_OUTCOMES = {"here": "here already", "pulled": "pulled", "absent": "not there"}


def _of_keys(keys: tuple[str, ...]) -> Iterator[tuple[str, None]]:
    for key in keys:
        whole = key if key.startswith("sha256:") else f"sha256:{key}"
        if not is_digest(whole):
            raise UsageError(
                f'"{key}" is no key of a wheel',
                code="usage-invalid-value",
                fix="a key is sha256: and 64 lower-case hex digits",
            )
        yield whole, None


def _of_cells(app: App, cells: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, str]]]:
    for pattern in cells:
        for cell in app.matrix.select(pattern):
            for build in app.fresh_lock(cell).builds:
                yield build.key, (build.name, build.version)


# imagegen wheels gc: remove wheels from the wheelhouse.

_YOUNG = 30 * 24 * 3600  # seconds


@command.command("gc")
@click.argument("names", nargs=-1, metavar="[NAME | NAME==VERSION | KEY]...")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@json_option("Print JSON: the wheels, and how many bytes they had.")
@pass_app
def remove_wheels(app: App, *, names: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove wheels that no lock of the project or of imagegen needs, unused for 30 days.

    With names, remove exactly those wheels: they are then compiled or pulled again.
    """
    wheels = list(wheelhouse.every(app.store))
    going = [wheel for name in names for wheel in _named(name, wheels)] if names else _unneeded(app, wheels)
    going = list({wheel.key: wheel for wheel in going}.values())
    freed = (
        wheelhouse.removable(app.store, going) if dry_run else sum(wheelhouse.remove(app.store, each) for each in going)
    )
    if as_json:
        app.json({"wheels": [dataclasses.asdict(wheel) for wheel in going], "freed": freed, "dry_run": dry_run})
        return
    for wheel in going:
        app.progress.say(f"{wheel.filename} ({human(wheel.size)}), {wheel.key}")
    verb = "would free" if dry_run else "freed"
    app.progress.say(f"{verb} {human(freed)}: {counted(len(going), 'wheel')}")


def _named(name: str, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    """Raises UsageError where none is called so."""
    found = [each for each in wheels if name in (each.name, f"{each.name}=={each.version}", each.key, each.filename)]
    if not found:
        fix = did_you_mean(name, {each.name for each in wheels}) or "`imagegen wheels list` shows what there is"
        raise UsageError(f'no wheel that is kept here is called "{name}"', code="usage-unknown-wheel", fix=fix)
    return found


def _unneeded(app: App, wheels: list[BuiltWheel]) -> list[BuiltWheel]:
    locks = [lock for cell in app.matrix.cells() if (lock := app.find_lock(cell))]
    needed = {build.key for lock in locks for build in lock.builds}
    return [
        each for each in wheels if each.key not in needed and wheelhouse.unused(app.store, each, time.time()) > _YOUNG
    ]
