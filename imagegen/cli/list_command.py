"""imagegen list: images and cells."""

from __future__ import annotations

import click
from rich.table import Table

from imagegen import lock
from imagegen.cli.app import App, pass_app
from imagegen.store import refs


@click.command("list")
@click.argument("pattern", default="*")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_app
def command(app: App, *, pattern: str, as_json: bool) -> None:
    """Images and cells that match PATTERN: what each is for, locked or not, built or not."""
    built = refs.images(app.store)
    rows = []
    for cell in app.matrix.select(pattern):
        found = app.find_lock(cell)
        if found is None:
            state = "no"
        elif lock.stale(found, cell):
            state = "stale"
        else:
            state = "recorded" if found.record else "yes"
        rows.append(
            {
                "cell": cell.id,
                "image": cell.image,
                "purpose": cell.purpose,
                "axes": dict(cell.axes),
                "locked": state,
                "built": built.get(cell.id),
            }
        )
    if as_json:
        app.json(rows)
        return
    table = Table("cell", "for", "locked", "built", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["cell"], row["purpose"], row["locked"], "yes" if row["built"] else "no")
    app.out.print(table)
