"""imagegen store: check, gc, size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict

import click

from imagegen.app.store import WHEELHOUSE, collect_garbage, find_owners
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.groups import CommandGroup
from imagegen.core.progress import human
from imagegen.core.store import upkeep


@click.group("store", cls=CommandGroup)
def command() -> None:
    """Check, clean and measure the store, an OCI image layout under XDG_CACHE_HOME."""


@command.command()
@click.option("--repair", is_flag=True, help="Remove damaged blobs; the next build builds or fetches them again.")
@json_option()
@pass_app
def check(app: App, *, repair: bool, as_json: bool) -> None:
    """Read every blob and name the damaged ones; exit code 1 when there are any."""
    owners = find_owners(app.session)  # before removal, because a removed manifest cannot be read
    damaged = upkeep.check(app.project.store, app.progress, repair=repair)
    if as_json:
        app.json([{"digest": digest, "part_of": owners.get(digest, {})} for digest in damaged])
    for digest in damaged:
        app.progress.say(f"damaged{' and removed' if repair else ''}: {_described(owners.get(digest, {}))}")
        app.progress.say(f"  {app.project.store.path(digest)}: its bytes have another sha256")
    again = sorted({cell for digest in damaged for cell in owners.get(digest, {})})
    if damaged and not repair:
        app.progress.say("fix: `imagegen store check --repair` removes them")
    if again:
        commands = ", ".join(
            "`imagegen wheels build`" if owner == WHEELHOUSE else f"`imagegen build {owner}`" for owner in again
        )
        app.progress.say(f"{commands} builds or fetches them again")
    if not as_json:
        app.progress.say(f"{len(damaged)} damaged")
    sys.exit(1 if damaged and not repair else 0)


@command.command()
@json_option("Print JSON (bytes).")
@pass_app
def gc(app: App, *, as_json: bool) -> None:
    """Remove blobs that no image of the store and no lock of the project or of imagegen needs, unused for a day.

    Builds may run at the same time. Compiled wheels are kept; `imagegen wheels gc` removes them.
    """
    freed = collect_garbage(app.session)
    if as_json:
        app.json({"freed": freed})
    else:
        app.progress.say(f"freed {human(freed)}")


def _described(uses: Mapping[str, str]) -> str:
    """Describe a blob and the cells that use it."""
    if not uses:
        return "a blob that no lock of this project and no image of the store names"
    cells: dict[str, list[str]] = {}
    for cell, use in sorted(uses.items()):
        cells.setdefault(use, []).append(cell)
    return "; ".join(f"{description} of {', '.join(names)}" for description, names in cells.items())


@command.command()
@json_option("Print JSON (bytes).")
@pass_app
def size(app: App, *, as_json: bool) -> None:
    """Print the disk space of the store."""
    sizes = upkeep.sizes(app.project.store)
    fields = {**asdict(sizes), "total": sizes.total}
    if as_json:
        app.json(fields)
        return
    for name, value in fields.items():
        click.echo(f"{name:<12}{human(value):>10}")
