"""imagegen report: write the matrix and its locked images as static pages."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app import site, site_view
from imagegen.app.site_report import read_report
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.options import all_option, glob_of
from imagegen.core.text import counted

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("report")
@click.argument("pattern", metavar="[GLOB]", required=False, shell_complete=complete_cells)
@all_option
@click.option(
    "-o",
    "--output",
    type=_FOLDER,
    metavar="DIR",
    required=True,
    help="Directory of the pages; an earlier report is replaced.",
)
@json_option("Print JSON: the index and the page of each cell.")
@pass_app
def command(app: App, *, pattern: str | None, include_shipped: bool, output: Path, as_json: bool) -> None:
    """Write web pages with the state of the cells that match GLOB, and the contents of locked cells.

    Without GLOB, take the project's cells: their image or their lock is in the project; all cells if it has none.

    The first page proposes an image by GPU, engine, CUDA and Python, with a command that runs it by digest, and shows
    why each cell has its state. Pages of locked cells show requirements, sizes, results of audit and smoke checks, and
    the history in git with sizes and today's verdicts. Their lock, SBOM and Dockerfile are files next to the page.
    Pages of other cells show the requirements of the matrix, and how to lock the cell. One page lists the packages of
    all locked cells, and each change of a lock has a page. Pages need no server, JavaScript or network. Prints the path
    of the first page.
    """
    site.require_own(output)
    report = read_report(app.session, app.session.lock_files.select(glob_of(pattern, include_shipped=include_shipped)))
    site.replace_report(output, site.render(report))
    first = str(output / "index.html")
    if as_json:
        app.json({"index": first, "cells": {cell.id: str(output / site_view.href(cell.id)) for cell in report.cells}})
        return
    app.progress.say(f"{counted(len(report.cells), 'cell')}, {len(report.sheets)} of them locked")
    click.echo(first)
