"""imagegen matrix: print the state of each cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from imagegen.app import cell_states
from imagegen.app.states import CellState, StateName
from imagegen.cli.app import App, complete_cells, pass_app
from imagegen.cli.table import Styled, Table
from imagegen.compat import CellAnswer
from imagegen.core.text import shown
from imagegen.spec.model import Cell

_RULES: dict[StateName, tuple[str, str]] = {  # the answer of rules and metadata, and its colour
    "tested": ("no conflict", "green"),
    "locked": ("no conflict", "green"),
    "no known conflict": ("no conflict", "none"),
    "conflict": ("conflict", "red"),
    "unknown": ("unknown", "yellow"),
}


@click.command("matrix")
@click.argument("pattern", metavar="[GLOB]", required=False, shell_complete=complete_cells)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--github", is_flag=True, help="Print locked cells (by default the project's) for $GITHUB_OUTPUT.")
@pass_app
def command(app: App, *, pattern: str | None, as_json: bool, github: bool) -> None:
    """Show whether the cells that match GLOB can work, are locked, and can be built on this machine now.

    The column "rules": rules and package metadata accept the cell (no conflict), reject it (conflict), or do neither
    (unknown).

    The column "lock": the smoke tests passed in the lock's image (tested); the lock has the digests of image and layers
    (recorded); every version and file is pinned (yes); a build rejects the lock (stale, edited, broken); there is no
    lock (no).

    The column "builds here": yes, or the first address that a build needs and this machine lacks. No request is sent.
    The default package index and Debian's archive count as available, other addresses only if the environment names a
    mirror, or if a find-links directory or the store has the file.
    """
    if github:
        chosen = (
            app.session.matrix.select(pattern, single=True)
            if pattern
            else app.session.lock_files.require_project_cells("imagegen matrix --github")
        )
        _print_github(app, [cell for cell in chosen if not cell.environments])
        return
    cells = app.session.matrix.select(pattern or "*")
    evaluated = app.session.judge.cell_answers(cells)
    answers = [_answer(app, cell, evaluated[cell.id]) for cell in cells]
    if as_json:
        app.json([_as_dict(answer) for answer in answers])
        return
    table = Table("cell", "rules", "lock", "builds here", "reason", wraps=("builds here", "reason"))
    for row in answers:
        rules, colour = _RULES[row.state.name]
        table.add_row(row.cell, Styled(rules, colour), row.lock, _builds(row), shown(row.state.reason))
    table.print(app.out)


@dataclass(frozen=True)
class _Answer:
    """One row. `rules` is the verdict, `lock` one word; `missing` are addresses that a build needs and cannot reach."""

    cell: str
    rules: str
    state: CellState
    lock: str
    missing: tuple[str, ...]


def _answer(app: App, cell: Cell, answer: CellAnswer) -> _Answer:
    locked = cell_states.read_lock(app.session.lock_files, cell)
    state = cell_states.state(app.session.lock_files, cell, answer, locked)
    word = "tested" if state.name == "tested" else cell_states.lock_state(app.session.lock_files, cell, locked)
    conflict = state.name == "conflict"
    missing = () if conflict else cell_states.missing_here(app.session.matrices, cell, state, locked)
    return _Answer(cell.id, "incompatible" if conflict else answer.answer, state, word, missing)


def _builds(answer: _Answer) -> str:
    if answer.state.name == "conflict":
        return "no"
    first, *more_addresses = answer.missing or ("",)
    suffix = f" and {len(more_addresses)} more" if more_addresses else ""
    return f"needs {shown(first)}{suffix}" if first else "yes"


def _print_github(app: App, cells: Sequence[Cell]) -> None:
    """Print the job matrices `cells` (of all cells) and `gpu` (of cells whose checks need a GPU), empty without a row.

    Images without GPUs that differ only in the platform share a row with `platforms`, since their checks run under
    emulation. Runners with GPUs have the labels self-hosted, gpu, and the family of the cell's newest GPU.
    """
    locked = [cell for cell in cells if app.session.lock_files.path(cell).exists()]
    groups = {group[0].id: group for group in (_on_one_runner(app, cell, locked) for cell in locked)}
    rows = [
        {
            "cell": group[0].id,
            "image": group[0].image,
            "gpu": bool(group[0].gpus),
            "labels": _labels(group[0]),
            "locks": "\n".join(f"locks/{cell.id}.toml" for cell in group),
            "platforms": ",".join(cell.platform for cell in group) if len(group) > 1 else "",
        }
        for group in groups.values()
    ]
    for name, jobs in {"cells": rows, "gpu": [row for row in rows if row["gpu"]]}.items():
        click.echo(f"{name}={json.dumps({'include': jobs}) if jobs else ''}")


def _on_one_runner(app: App, cell: Cell, locked: Sequence[Cell]) -> tuple[Cell, ...]:
    return (
        (cell,)
        if cell.gpus
        else tuple(on_platform for on_platform in app.session.matrix.on_platforms(cell, "all") if on_platform in locked)
    )


def _labels(cell: Cell) -> list[str]:
    return ["self-hosted", "gpu", cell.gpus[-1].family] if cell.gpus else ["ubuntu-24.04"]


def _as_dict(answer: _Answer) -> dict[str, Any]:
    return {
        "cell": answer.cell,
        "state": answer.state.name,
        "reason": answer.state.reason,
        "rules": answer.rules,
        "lock": answer.lock,
        "buildable": answer.state.name != "conflict" and not answer.missing,
        "missing": list(answer.missing),
    }
