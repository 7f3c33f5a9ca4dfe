"""imagegen wheels: find, build, list, push, pull and remove wheels that no index has."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any

import click

from imagegen.app import wheelhouse as use_cases
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.groups import CommandGroup
from imagegen.cli.options import builder_option
from imagegen.cli.table import Table
from imagegen.cli.wheels_find import find_wheels
from imagegen.core.progress import human
from imagegen.core.text import counted, shown
from imagegen.lock.builds import BuiltWheel
from imagegen.wheels import wheelhouse

_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


@click.group("wheels", cls=CommandGroup)
def command() -> None:
    """Find, build, list, push, pull and remove wheels that no index has."""


command.add_command(find_wheels)


@command.command("list")
@json_option()
@pass_app
def list_wheels(app: App, *, as_json: bool) -> None:
    """List the wheels of the store: torch, Python, GPUs, size, age, key."""
    wheels = list(wheelhouse.every(app.project.store))
    if as_json:
        app.json([asdict(wheel) for wheel in wheels])
        return
    table = Table("wheel", "version", "torch", "python", "GPUs", "size", "made", "key")
    for wheel in wheels:
        age = _age(wheel.record.get("made"), time.time())
        size = human(wheel.size)
        table.add_row(wheel.name, wheel.version, *map(_cell, _facts(wheel)), size, age, wheel.key)
    if wheels:
        table.print(app.out)
    else:
        app.progress.say("the store has no wheels; `imagegen wheels build` compiles the source builds of a cell's lock")


def _facts(wheel: BuiltWheel) -> tuple[Any, ...]:
    """Return torch, Python and architectures of a wheel's record; None for a missing or invalid field."""
    architectures = wheel.record.get("architectures")
    gpus = " ".join(map(str, architectures)) if isinstance(architectures, list | tuple) else None
    return wheel.record.get("torch"), wheel.record.get("python"), gpus


def _cell(fact: Any) -> str:
    return shown(str(fact)) if fact else "-"


def _age(timestamp: Any, now: float) -> str:
    """Return an age as text: "3 days"."""
    if not isinstance(timestamp, int | float) or not 0 <= timestamp < 1 << 40:
        return "-"
    passed = max(0.0, now - timestamp)
    for unit, seconds in _UNITS:
        if (number := int(passed // seconds)) > 0:
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"


@command.command("build")
@click.argument("component", required=False)
@click.option("--cell", "pattern", required=True, metavar="CELL", help="The cell whose lock has the source builds.")
@builder_option
@json_option("Print JSON: the wheels with the record of each build.")
@pass_app
def build_wheels(app: App, *, component: str | None, pattern: str, builder: str | None, as_json: bool) -> None:
    """Compile COMPONENT, or every missing source build of CELL's lock.

    The plan is printed first. An interrupted build resumes. Prints each wheel's key and file name.
    """
    wheels = use_cases.build_wheels(app.session, component, pattern, builder)
    if as_json:
        app.json([asdict(wheel) for wheel in wheels])
        return
    for wheel in wheels:
        click.echo(f"{wheel.key} {wheel.filename}")


@command.command("push")
@click.argument("patterns", nargs=-1, metavar="[NAME | KEY]...")
@click.option("--to", "destination", metavar="REPOSITORY", help="registry.example.com/team/wheels, say.")
@click.option("--dry-run", is_flag=True, help="Print the wheels that would be pushed, and push nothing.")
@json_option("Print JSON: for each wheel its key, and whether it was pushed.")
@pass_app
def push_wheels(app: App, *, patterns: tuple[str, ...], destination: str | None, dry_run: bool, as_json: bool) -> None:
    """Push all wheels of the store, or the named ones, to a repository of a registry; * and ? are allowed.

    Without --to, IMAGEGEN_WHEELHOUSE names the repository. A wheel that it has under the same key is not changed.
    """
    pushed, team = use_cases.push_wheels(app.project, patterns, destination, dry_run=dry_run)
    if as_json:
        keys = ("key", "name", "version", "filename", "sha256", "size")
        app.json([{key: getattr(wheel, key) for key in keys} | {"pushed": is_new} for wheel, is_new in pushed])
        return
    verb = "would be pushed" if dry_run else "pushed"
    app.progress.say(f"{sum(is_new for _, is_new in pushed)} of {counted(len(pushed), 'wheel')} {verb} to {team}")


@command.command("pull")
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
    outcomes, team = use_cases.pull_wheels(app.session, keys, cells, source)
    if as_json:
        app.json(outcomes)
    else:
        here, pulled, absent = (list(outcomes.values()).count(name) for name in ("here", "pulled", "absent"))
        app.progress.say(
            f"{counted(pulled, 'wheel')} pulled from {team}, {here} already in the store, {absent} not found"
        )
    sys.exit(1 if "absent" in outcomes.values() else 0)


@command.command("gc")
@click.argument("names", nargs=-1, metavar="[NAME | NAME==VERSION | KEY]...")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@json_option("Print JSON: the wheels and their bytes.")
@pass_app
def remove_wheels(app: App, *, names: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove wheels that no lock of the project or of imagegen needs, unused for 30 days.

    With names, remove only these wheels, which must then be compiled or pulled again.
    """
    removed, freed = use_cases.remove_wheels(app.session, names, dry_run=dry_run)
    if as_json:
        app.json({"wheels": [asdict(wheel) for wheel in removed], "freed": freed, "dry_run": dry_run})
        return
    for wheel in removed:
        app.progress.say(f"{wheel.filename} ({human(wheel.size)}), {wheel.key}")
    verb = "would free" if dry_run else "freed"
    app.progress.say(f"{verb} {human(freed)}: {counted(len(removed), 'wheel')}")
