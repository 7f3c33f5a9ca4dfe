"""imagegen matrix: print the state of each cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from imagegen.app import cell_states
from imagegen.app.cell_states import CellStatus
from imagegen.app.ci_jobs import ci_jobs
from imagegen.app.states import StateName
from imagegen.cli.app import App, complete_cells, pass_app
from imagegen.cli.options import all_option, glob_of
from imagegen.cli.table import Styled, Table
from imagegen.core.text import shown

_RULES: dict[StateName, tuple[str, str]] = {  # the answer of rules and metadata, and its colour
    "tested": ("no conflict", "green"),
    "locked": ("no conflict", "green"),
    "no known conflict": ("no conflict", "none"),
    "conflict": ("conflict", "red"),
    "unknown": ("unknown", "yellow"),
}


@click.command("matrix")
@click.argument("pattern", metavar="[GLOB]", required=False, shell_complete=complete_cells)
@all_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--github", is_flag=True, help="Print locked cells for $GITHUB_OUTPUT.")
@pass_app
def command(app: App, *, pattern: str | None, include_shipped: bool, as_json: bool, github: bool) -> None:
    """Show whether the cells that match GLOB can work, are locked, and can be built on this machine now.

    Without GLOB, take the project's cells: their image or their lock is in the project. A project without cells shows
    all of them, unless with --github.

    The column "rules": rules and package metadata accept the cell (no conflict), reject it (conflict), or do neither
    (unknown).

    The column "lock": the smoke tests passed in the lock's image (tested); the lock has the digests of image and layers
    (recorded); every version and file is pinned (yes); a build rejects the lock (stale, edited, broken); there is no
    lock (no).

    The column "builds here": yes, or the first address that a build needs and this machine lacks. No request is sent.
    The default package index and Debian's archive count as available, other addresses only if the environment names a
    mirror, or if a find-links directory or the store has the file.
    """
    pattern = glob_of(pattern, include_shipped=include_shipped)
    if github:
        for name, jobs in ci_jobs(app.session, pattern).items():
            click.echo(f"{name}={json.dumps({'include': jobs}) if jobs else ''}")
        return
    statuses = cell_states.statuses(app.session, app.session.lock_files.select(pattern))
    rows = [_as_dict(status) for status in statuses]
    if as_json:
        app.json(rows)
        return
    table = Table("cell", "rules", "lock", "builds here", "reason", wraps=("builds here", "reason"))
    for row in rows:
        rules, colour = _RULES[row["state"]]
        table.add_row(row["cell"], Styled(rules, colour), row["lock"], _builds(row), shown(row["reason"]))
    table.print(app.out)


def _builds(row: Mapping[str, Any]) -> str:
    """Return whether the cell of a row can be built here, or the first address that is missing."""
    if row["state"] == "conflict":
        return "no"
    first, *more_addresses = row["missing"] or ("",)
    suffix = f" and {len(more_addresses)} more" if more_addresses else ""
    return f"needs {shown(first)}{suffix}" if first else "yes"


def _as_dict(status: CellStatus) -> dict[str, Any]:
    state, is_conflict = status.state, status.state.name == "conflict"
    missing = [] if is_conflict else list(status.missing)
    return {
        "cell": status.cell.id,
        "state": state.name,
        "reason": state.reason,
        "rules": "incompatible" if is_conflict else status.answer.answer,
        "lock": "tested" if state.name == "tested" else status.lock_state,
        "buildable": not is_conflict and not missing,
        "missing": missing,
    }
