"""imagegen matrix: the grid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from imagegen import compat
from imagegen.cli import states
from imagegen.cli.app import App, pass_app
from imagegen.cli.table import Table
from imagegen.compat import Row
from imagegen.matrix.model import Cell
from imagegen.state import CellState, StateName
from imagegen.text import counted, shown

_COLOURS: dict[StateName, str] = {
    "tested": "green",
    "locked": "green",
    "no known conflict": "none",
    "not buildable": "yellow",
    "conflict": "red",
    "unknown": "yellow",
}


@click.command("matrix")
@click.argument("pattern", metavar="[GLOB]", default="*")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--github", is_flag=True, help="Print lines for $GITHUB_OUTPUT: what is locked, as matrices.")
@pass_app
def command(app: App, *, pattern: str, as_json: bool, github: bool) -> None:
    r"""Show the cells that match GLOB, each with its state and the reason for it.

    \b
    tested             the smoke tests passed in exactly the image that the lock gives
    locked             every version and file is pinned
    no known conflict  rules and package metadata accept it; it is not locked
    not buildable      no rule rejects it, but imagegen cannot build it
    conflict           rules or package metadata reject it
    unknown            rules and package metadata do not decide it

    "combinations" counts the choices of known versions of the cell's main components (torch, vllm, megatron-core, ...)
    that rules and metadata accept on its GPUs, CUDA and Python; "versions" are those of its inference engine.
    """
    if github:
        _print_github(app, app.matrix.select(pattern))
        return
    rows = compat.survey(app.matrix.select(pattern), app.matrix.rules, app.library)
    found = [states.state(app, row.cell, row.standing, states.read_lock(app, row.cell)) for row in rows]
    if as_json:
        app.json([_as_dict(row, state) for row, state in zip(rows, found, strict=True)])
        return
    table = Table("cell", "state", "combinations", "versions", "reason", wraps=("versions", "reason"))
    for row, state in zip(rows, found, strict=True):
        name, counts = Text(state.name, style=_COLOURS[state.name]), _combinations(row)
        table.add_row(row.cell.id, name, counts, _engine(row), shown(state.reason))
    table.print(app.out)


def _print_github(app: App, cells: Sequence[Cell]) -> None:
    """`cells` of all, `gpu` of those whose checks need a GPU; a matrix without a row is no matrix, so empty then.

    Runners with GPUs are found by labels: self-hosted, gpu, and the family of the cell's newest GPU.
    """
    locked = [cell for cell in cells if app.lock_path(cell).exists()]
    rows = [{"cell": cell.id, "image": cell.image, "gpu": bool(cell.gpus), "labels": _labels(cell)} for cell in locked]
    for name, some in {"cells": rows, "gpu": [row for row in rows if row["gpu"]]}.items():
        click.echo(f"{name}={json.dumps({'include': some}) if some else ''}")


def _labels(cell: Cell) -> list[str]:
    return ["self-hosted", "gpu", cell.gpus[-1].family] if cell.gpus else ["ubuntu-24.04"]


def _combinations(row: Row) -> str:
    return f"{row.fits.count:,} of {row.fits.among:,} fit" if row.fits.names else ""


def _engine(row: Row) -> str:
    """The versions that fit of the cell's inference engine, else of torch."""
    name = row.fits.engine
    if name is None:
        return ""
    versions = row.fits.versions[name]
    return f"{name} {versions[0]} to {versions[-1]} ({counted(len(versions), 'release')})" if versions else f"no {name}"


def _as_dict(row: Row, state: CellState) -> dict[str, Any]:
    return {
        "cell": row.cell.id,
        "state": state.name,
        "reason": state.reason,
        "fit": row.fits.count,
        "of": row.fits.among,
        "versions": {name: list(versions) for name, versions in row.fits.versions.items()},
    }
