"""imagegen store: check, gc, size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

import click

from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.groups import CommandGroup
from imagegen.core.errors import FetchError, LockError, StoreError
from imagegen.core.progress import human
from imagegen.core.store import images
from imagegen.image import inputs
from imagegen.image.inventory.subjects import blobs
from imagegen.spec.model import Cell
from imagegen.wheels import wheelhouse

_WHEELHOUSE = "the wheelhouse"  # among cells, as an owner of blobs


@click.group("store", cls=CommandGroup)
def command() -> None:
    """Check, clean and measure the store, an OCI image layout under XDG_CACHE_HOME."""


@command.command()
@click.option("--repair", is_flag=True, help="Remove damaged blobs; the next build builds or fetches them again.")
@json_option()
@pass_app
def check(app: App, *, repair: bool, as_json: bool) -> None:
    """Read every blob and name the damaged ones; exit code 1 when there are any."""
    owners = _owners(app)  # before removal, because a removed manifest cannot be read
    damaged = images.check(app.project.store, app.progress, repair=repair)
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
            "`imagegen wheels build`" if owner == _WHEELHOUSE else f"`imagegen build {owner}`" for owner in again
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
    required = [digest for cell in app.session.matrix.cells() for digest in _locked(app, cell)]
    freed = images.collect(app.project.store, [*required, *wheelhouse.contents(app.project.store)])
    if as_json:
        app.json({"freed": freed})
    else:
        app.progress.say(f"freed {human(freed)}")


def _locked(app: App, cell: Cell) -> dict[str, str]:
    """Return the digests of all files that the cell's lock names and of the scans of its wheels, with descriptions."""
    lock = app.session.lock_files.find(cell)
    return inputs.contents(lock) | blobs(lock, app.project.store) if lock else {}


def _owners(app: App) -> dict[str, dict[str, str]]:
    """Return digest -> cell -> description, from the locks and the images of the store."""
    owners: dict[str, dict[str, str]] = {}
    for name, digest in images.images(app.project.store).items():
        with suppress(FetchError, StoreError):  # the manifest or config is missing
            for part, use in images.parts(app.project.store, digest).items():
                owners.setdefault(part, {})[name] = use
        owners.setdefault(digest, {})[name] = "manifest"
    for cell in app.session.matrix.cells():
        with suppress(LockError):  # `list` reports a broken lock
            for part, use in _locked(app, cell).items():
                owners.setdefault(part, {})[cell.id] = use
    for part, use in wheelhouse.contents(app.project.store).items():
        owners.setdefault(part, {})[_WHEELHOUSE] = use
    return owners


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
    sizes = images.sizes(app.project.store)
    fields = {**asdict(sizes), "total": sizes.total}
    if as_json:
        app.json(fields)
        return
    for name, value in fields.items():
        click.echo(f"{name:<12}{human(value):>10}")
