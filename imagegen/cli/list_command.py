"""imagegen list: images and cells."""

from __future__ import annotations

import click
from rich.table import Table

from imagegen import lock
from imagegen.cli.app import App, pass_app
from imagegen.errors import LockError
from imagegen.lock.model import Lock
from imagegen.matrix.model import Cell
from imagegen.store import refs


@click.command("list")
@click.argument("pattern", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(app: App, *, pattern: str | None, as_json: bool) -> None:
    """Images, each with its default cell; or the cells that match PATTERN, a glob: "*" shows all.

    What each is for, locked or not, built (in the store) or not.
    """
    built = refs.images(app.store)
    cells = app.matrix.select(pattern) if pattern else tuple(app.matrix.select(name)[0] for name in app.matrix.defaults)
    locks: dict[str, Lock | None] = {}
    locked: dict[str, str] = {}
    for cell in cells:
        try:
            locks[cell.id] = app.find_lock(cell)
            locked[cell.id] = _locked(app, locks[cell.id], cell)
        except LockError as error:  # one broken lock must not hide the other cells
            app.progress.say(str(error))
            locks[cell.id], locked[cell.id] = None, "broken"
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
    first = ("cell",) if pattern else ("image", "default cell")
    table = Table(*first, "for", "locked", "built", box=None, pad_edge=False)
    for cell in cells:
        names = (cell.id,) if pattern else (cell.image, cell.id)
        table.add_row(*names, cell.purpose, locked[cell.id], _built(locks[cell.id], built.get(cell.id)))
    app.out.print(table)
    if not pattern and (more := len(app.matrix.cells()) - len(cells)):
        app.progress.say(f"{more} more cells, for other values of the axes: imagegen list 'IMAGE*'")


def _built(found: Lock | None, digest: str | None) -> str:
    if digest is None:
        return "no"
    return "from another lock" if found and found.record and found.record.digest != digest else "yes"


def _locked(app: App, found: Lock | None, cell: Cell) -> str:
    if found is None:
        return "no"
    if lock.stale(found, cell):
        return "stale"
    if lock.contradictions(found, cell):
        return "edited"
    try:
        app.require_unedited(found, cell)
    except LockError:
        return "edited"
    return "recorded" if found.record else "yes"
