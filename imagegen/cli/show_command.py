"""imagegen show: what is in an image, and why."""

from __future__ import annotations

import dataclasses

import click
from rich.table import Table
from rich.text import Text

from imagegen import pipeline
from imagegen.cli.app import App, pass_app
from imagegen.lock.model import Lock
from imagegen.matrix.model import Cell
from imagegen.progress import human
from imagegen.recipe import reason


@click.command("show")
@click.argument("cell")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(app: App, *, cell: str, as_json: bool) -> None:
    """What is in CELL, and why each pin is what it is."""
    locks = [(chosen, app.fresh_lock(chosen)) for chosen in app.matrix.select(cell)]
    if as_json:
        app.json([dataclasses.asdict(lock) for _, lock in locks])
        return
    for chosen, lock in locks:
        _show(app, chosen, lock)


def _show(app: App, cell: Cell, lock: Lock) -> None:
    app.out.print(Text.assemble((cell.id, "bold"), f": {cell.description}"))
    app.out.print(cell.purpose)
    app.out.print(f"base {lock.base.name}: {len(lock.base.debs)} Debian packages ({lock.base.suite})")
    app.out.print(f"locked as of {lock.as_of} by uv {lock.uv.version}; tag {pipeline.tags(lock)[0]}")
    if lock.record:
        size = human(sum(layer.size for layer in lock.record.layers))
        app.out.print(f"image {lock.record.digest}, {len(lock.record.layers)} layers, {size}")
    table = Table("package", "version", "size", "from", "why", box=None, pad_edge=False)
    for wheel in lock.wheels:
        source = f"{wheel.file.index} (sdist)" if wheel.sdist else wheel.file.index
        table.add_row(wheel.name, wheel.version, human(wheel.file.size), source, reason(wheel))
    app.out.print(table)
    for variable in lock.env:
        app.out.print(f"{variable.name}={variable.value}  ({variable.because})")
