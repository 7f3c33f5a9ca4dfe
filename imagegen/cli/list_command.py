"""imagegen list: images and cells."""

from __future__ import annotations

import click
from rich.table import Table

from imagegen import lock
from imagegen.cli.app import App, pass_app
from imagegen.matrix.model import Cell
from imagegen.store import refs


@click.command("list")
@click.argument("pattern", default="*")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(app: App, *, pattern: str, as_json: bool) -> None:
    """Images and cells that match PATTERN: what each is for, locked or not, built or not."""
    built = refs.images(app.store)
    cells = app.matrix.select(pattern)
    locked = {cell.id: _locked(app, cell) for cell in cells}
    if as_json:
        app.json(
            [
                {
                    "cell": cell.id,
                    "image": cell.image,
                    "purpose": cell.purpose,
                    "axes": dict(cell.axes),
                    "locked": locked[cell.id],
                    "built": built.get(cell.id),
                }
                for cell in cells
            ]
        )
        return
    table = Table("cell", "for", "locked", "built", box=None, pad_edge=False)
    for cell in cells:
        table.add_row(cell.id, cell.purpose, locked[cell.id], _built(app, cell, built.get(cell.id)))
    app.out.print(table)


def _built(app: App, cell: Cell, digest: str | None) -> str:
    found = app.find_lock(cell)
    if digest is None:
        return "no"
    return "from another lock" if found and found.record and found.record.digest != digest else "yes"


def _locked(app: App, cell: Cell) -> str:
    found = app.find_lock(cell)
    if found is None:
        return "no"
    if lock.stale(found, cell):
        return "stale"
    return "recorded" if found.record else "yes"
