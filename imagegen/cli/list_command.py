"""imagegen list: images and cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from imagegen.app import cell_states
from imagegen.app.cell_states import CellStatus
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.table import Table
from imagegen.core.errors import LockError
from imagegen.core.store import images
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


@click.command("list")
@click.argument("pattern", required=False, shell_complete=complete_cells)
@json_option()
@pass_app
def command(app: App, *, pattern: str | None, as_json: bool) -> None:
    """List images, each with its default cell; or the cells that match PATTERN, a glob: "*" shows all.

    The list has the purpose of each, its state as in `imagegen matrix`, and whether it is built (in the store).
    """
    built = images.images(app.project.store)
    patterns = [pattern] if pattern else [*app.session.matrix.defaults]
    cells = tuple(cell for selected in patterns for cell in app.session.matrix.select(selected))
    statuses = cell_states.statuses(app.session, cells)
    if as_json:
        app.json([_as_dict(status, built) for status in statuses])
        return
    first = ("cell",) if pattern else ("image", "default cell")
    one_image = len({cell.image for cell in cells}) == 1  # its purpose is printed once
    if one_image:
        app.out.print(f"{cells[0].image}: {_purpose(cells[0])}")
    table = Table(*first, "state", "built", *(() if one_image else ("for",)), wraps=("state", "for"))
    for status in statuses:
        cell = status.cell
        names = (cell.id,) if pattern else (cell.image, cell.id)
        row = (*names, status.state.name, _built(status.lock, built.get(cell.id)))
        table.add_row(*row, *(() if one_image else (_purpose(cell),)))
    table.print(app.out)
    if not pattern and (remaining_count := len(app.session.matrix.all_cells) - len(cells)):
        app.progress.say(f"{remaining_count} more cells, for other values of the axes: imagegen list 'IMAGE*'")


def _as_dict(status: CellStatus, built: Mapping[str, str]) -> dict[str, Any]:
    cell, state = status.cell, status.state
    return {
        "cell": cell.id,
        "image": cell.image,
        "purpose": cell.purpose,
        "extends": cell.extends,
        "environments": [environment.name for environment in cell.environments],
        "axes": dict(cell.axes),
        "state": state.name,
        "reason": state.reason,
        "locked": status.lock_state,
        "missing": list(status.missing),
        "built": built.get(cell.id),
    }


def _purpose(cell: Cell) -> str:
    """Return the image's purpose. If it extends another image, its changes come first."""
    return f"{cell.description} {cell.purpose}" if cell.extends else cell.purpose


def _built(lock: Lock | LockError | None, digest: str | None) -> str:
    if digest is None:
        return "no"
    return "from another lock" if isinstance(lock, Lock) and lock.record and lock.record.digest != digest else "yes"
