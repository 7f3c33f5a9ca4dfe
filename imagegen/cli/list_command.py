"""imagegen list: images and cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from imagegen.app import cell_states
from imagegen.app.cell_states import CellStatus
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.options import glob_of
from imagegen.cli.table import Table
from imagegen.core.errors import LockError
from imagegen.core.store import images
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


@click.command("list")
@click.argument("pattern", required=False, shell_complete=complete_cells)
@click.option("--all", "include_shipped", is_flag=True, help="List the shipped images too.")
@json_option()
@pass_app
def command(app: App, *, pattern: str | None, include_shipped: bool, as_json: bool) -> None:
    """List the project's images, each with its default cell; or the cells that match PATTERN, a glob: "*" shows all.

    An image is the project's if its entry, or a lock of it, is in the project. A project without images lists all of
    them, as --all does.

    The list has the purpose of each, its state as in `imagegen matrix`, and whether it is built (in the store).
    """
    built = images.images(app.project.store)
    glob_of(pattern, include_shipped=include_shipped)
    selected = app.session.matrix.all_cells if include_shipped else app.session.lock_files.select(pattern)
    cells = tuple(selected if pattern else _one_row_per_image(app.session.matrix.defaults, selected))
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
    if not pattern and (remaining_count := len(selected) - len(cells)):
        app.progress.say(f"{remaining_count} more cells, for other values of the axes: imagegen list 'IMAGE*'")
    if not pattern and len(selected) < len(app.session.matrix.all_cells):
        app.progress.say("the shipped images too: imagegen list --all")


def _one_row_per_image(defaults: Mapping[str, str], cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the default cell of each image; if it is not among the cells, yield the image's cells that are."""
    ids = {cell.id for cell in cells}
    yield from (cell for cell in cells if cell.id == defaults[cell.image] or defaults[cell.image] not in ids)


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
