"""imagegen matrix: the grid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from imagegen import compat
from imagegen.cli.app import App, pass_app
from imagegen.compat import Row
from imagegen.matrix.model import Cell
from imagegen.text import shown

_SHOWN = {"compatible": ("yes", "green"), "incompatible": ("no", "red"), "unknown": ("unknown", "yellow")}


@click.command("matrix")
@click.argument("pattern", metavar="[GLOB]", default="*")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--github", is_flag=True, help="Print lines for $GITHUB_OUTPUT: what is locked, as matrices.")
@pass_app
def command(app: App, *, pattern: str, as_json: bool, github: bool) -> None:
    """The cells that match GLOB: which work, which do not and why, of which it is not known.

    It is judged by rules and by what package metadata states; "yes" is no promise that a lock can be made. "fit" counts
    the known versions of the cell's main components that go together on its GPUs, CUDA and Python.
    """
    if github:
        _print_github(app, app.matrix.select(pattern))
        return
    rows = compat.survey(app.matrix.select(pattern), app.matrix.rules, app.library)
    if as_json:
        app.json([_as_dict(row) for row in rows])
        return
    table = Table("cell", "works", "fit", "of", "with", "why", box=None, pad_edge=False)
    for row in rows:
        word, colour = _SHOWN[row.standing.answer]
        count, among = (f"{row.fits.count:,}", f"{row.fits.among:,}") if row.fits.names else ("", "")
        table.add_row(row.cell.id, Text(word, style=colour), count, among, _engine(row), shown(row.standing.reason))
    app.out.print(table)


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


def _engine(row: Row) -> str:
    """The versions that fit of what the cell generates with, else of what it trains with."""
    name = row.fits.engine
    if name is None:
        return ""
    versions = row.fits.versions[name]
    return f"{name} {versions[0]} to {versions[-1]} ({len(versions)})" if versions else f"no {name}"


def _as_dict(row: Row) -> dict[str, Any]:
    return {
        "cell": row.cell.id,
        "works": {"compatible": True, "incompatible": False, "unknown": None}[row.standing.answer],
        "reason": row.standing.reason,
        "fit": row.fits.count,
        "of": row.fits.among,
        "versions": {name: list(versions) for name, versions in row.fits.versions.items()},
    }
