"""imagegen test: run the smoke checks, or measure numerical results."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app.build import run_checks
from imagegen.checks.smoke.table import applicable
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.numerics_tables import measured_numerics
from imagegen.cli.output import check_writable, print_lines, print_report
from imagegen.core.errors import SmokeError, UsageError
from imagegen.run import numerics
from imagegen.run.smoke.report import SmokeReport
from imagegen.run.smoke.runner import parts
from imagegen.spec.model import Cell


@click.command("test")
@click.argument("cell", shell_complete=complete_cells)
@json_option("Print the report as JSON.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@click.option("--numerics", "measure", is_flag=True, help="Measure numerical differences instead of the smoke checks.")
@pass_app
def command(app: App, *, cell: str, as_json: bool, junit: Path | None, require_gpu: bool, measure: bool) -> None:
    """Run the smoke checks of CELL's image, which must be in Docker.

    With --numerics, measure instead how far its numerical operations, and its trainer and rollout engine, are from a
    float64 reference and from each other; `imagegen diff` compares the results of two images.

    If an image has several environments, the checks of each run in it; --numerics rejects such images.
    """
    chosen = app.session.matrix.select_one(cell, single=measure)
    lock = app.session.lock_files.fresh(chosen)
    names = numerics.CHECKS if measure else ()
    if not applicable(parts(lock), names):
        raise UsageError(f"{chosen.id} has no numerics to measure", code="usage-no-numerics", why="it has no torch")
    if junit:
        check_writable(junit)
    image, report = run_checks(app.project, chosen, lock, names, require_gpu=require_gpu)
    if measure:
        numerics.remember(app.project.store, image, report)
    if junit:
        junit.write_text(report.junit(chosen.id), encoding="utf-8")
    present_report(app, chosen, report, as_json=as_json)


def present_report(app: App, cell: Cell, report: SmokeReport, *, as_json: bool) -> None:
    """Print the report as JSON, or as a table and numerical results. Raises SmokeError if it has not passed."""
    if as_json:
        app.json(report.as_dict())
    else:
        print_report(app.out, report)
        print_lines(app.out, measured_numerics(report))
    if not report.passed:
        raise SmokeError(f"smoke checks failed for {cell.id}", code="smoke-failed")
