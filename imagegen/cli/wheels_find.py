"""imagegen wheels find: show the source of a wheel that may have to be compiled."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.table import Table
from imagegen.core.text import counted, shown
from imagegen.spec.model import Cell
from imagegen.spec.recipe import Recipe
from imagegen.wheels.find import Candidate, unreachable
from imagegen.wheels.offers import WheelSource
from imagegen.wheels.throttle import CORES, BuildJob, duration, estimate

if TYPE_CHECKING:
    from imagegen.app.find_wheel import WheelSearch


@click.command("find")
@click.argument("component")
@click.option(
    "--cell", "pattern", metavar="CELL", required=True, shell_complete=complete_cells, help="An image or a cell."
)
@json_option()
@pass_app
def find_wheels(app: App, *, component: str, pattern: str, as_json: bool) -> int:
    """Show which wheel of COMPONENT a cell gets, and why; exit code 1 if none is compatible.

    COMPONENT==VERSION searches that version instead of the cell's. Candidates are listed in search order; a file with a
    compatible name is fetched, hashed and audited, until one passes. Nothing is compiled, and no lock is changed.
    """
    from imagegen.app.find_wheel import find_wheel  # late, because it imports the readers of wheels

    search = find_wheel(app.session, component, pattern)
    if as_json:
        app.json(_as_dict(search))
    else:
        _print(app, search)
    return 0 if search.choice else 1


def _as_dict(search: WheelSearch) -> dict[str, Any]:
    need, choice = search.need, search.choice
    return {
        "component": search.component.name,
        "version": need.version,
        "cell": search.cell.id,
        "python": need.python,
        "platform": need.platform,
        "torch": need.torch,
        "cuda": need.cuda,
        "candidates": [_row(candidate) for candidate in search.candidates],
        "choice": _row(choice) if choice else None,
    }


def _row(candidate: Candidate) -> dict[str, Any]:
    return {
        "place": candidate.place.value,
        "file": candidate.filename,
        "where": candidate.where,
        "fits": candidate.fits,
        "reason": candidate.reason,
        "sha256": candidate.sha256,
        "size": candidate.size,
    }


def _duration(recipe: Recipe, cell: Cell) -> str:
    """Return text such as " of about 25 min on 16 cores"; "" if the recipe has no cost."""
    count = len(cell.gpus) if recipe.architectures else 1
    work = BuildJob(recipe.cost, count, jobs=recipe.jobs is not None, threads=recipe.threads is not None)
    seconds = estimate(work) if recipe.cost else None
    return f" of about {duration(seconds)} on {CORES} cores" if seconds else ""


def _print(app: App, search: WheelSearch) -> None:
    component, cell, need, results = search.component, search.cell, search.need, search.candidates
    chosen = search.choice
    target = f"Python {need.python}, torch {need.torch or 'none'}, CUDA {need.cuda or 'none'}"
    click.echo(f"{component.name} {need.version} for {cell.id}: {target}")
    unreachable_wheels = unreachable(results)
    if unreachable_wheels and chosen and chosen.place is WheelSource.SOURCE:
        click.echo(
            f"{counted(len(unreachable_wheels), 'prebuilt wheel')} may fit, but cannot be reached from this machine:"
        )
        for candidate in unreachable_wheels:
            click.echo(shown(f"  {candidate.where}"))
        time = _duration(app.session.matrix.recipes[component.name], cell)
        click.echo(f"without it, the lock has a source build{time}; a directory in PIP_FIND_LINKS can provide it")
    table = Table("file", "fits", "place", "why", wraps=("why",))
    # Files of one source that are rejected for one reason share a row; JSON has each.
    for (fits, source, why), group in groupby(results, lambda item: (item.fits, item.place.value, item.reason)):
        first, *more_names = [candidate.filename or candidate.where for candidate in group]
        suffix = f" and {len(more_names)} more" if more_names else ""
        table.add_row(shown(first + suffix), "yes" if fits else "no", source, shown(why))
    table.print(app.out)
    if chosen:
        click.echo(shown(f"choice: {chosen.place.value}, {chosen.filename}: {chosen.reason}"))
        click.echo(shown(f"  {chosen.where}"))
    else:
        why = f": {need.obstacle}" if need.obstacle else "; a recipe under wheels/ would compile it"
        click.echo(shown(f"choice: none, so the cell cannot have it{why}"))
