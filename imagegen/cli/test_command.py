"""imagegen test: run the smoke checks, or measure numerical results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.cli.output import check_writable, print_lines, print_report
from imagegen.cli.table import Table
from imagegen.core.errors import EngineError, SmokeError, UsageError
from imagegen.core.text import shown
from imagegen.incontainer.smoke.table import applicable
from imagegen.plan.lock import local_tags
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.run import numerics, smoke
from imagegen.run.engine import Engine
from imagegen.run.smoke import SmokeReport, parts
from imagegen.supply.compare.numerics import Numerics, size


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
    chosen = app.matrix.select_one(cell, single=measure)
    lock = app.fresh_lock(chosen)
    names = numerics.CHECKS if measure else ()
    if not applicable(parts(lock), names):
        raise UsageError(f"{chosen.id} has no numerics to measure", code="usage-no-numerics", why="it has no torch")
    if junit:
        check_writable(junit)
    image, report = _run(app, chosen, lock, names, require_gpu=require_gpu)
    if measure:
        numerics.remember(app.store, image, report)
    if junit:
        junit.write_text(report.junit(chosen.id), encoding="utf-8")
    present_report(app, chosen, report, as_json=as_json)


def _run(
    app: App, cell: Cell, lock: Lock, names: Collection[str], *, require_gpu: bool
) -> tuple[str, smoke.SmokeReport]:
    """Run the checks in `names`, or all default checks. Returns the image's digest and the report."""
    tag = local_tags(lock)[1]
    with Engine.connect(app.settings, app.progress) as engine:
        image = engine.image_digest(tag)
        if image is None:
            raise EngineError(f"{tag} is not in Docker", code="engine-no-image", fix=f"`imagegen build {cell.id}`")
        return image, smoke.run(
            engine, tag, lock, cell.declarations, require_gpu=require_gpu, progress=app.progress, only=names
        )


# Tables of the numerical results of an image, and of the difference between two images.


def present_report(app: App, cell: Cell, report: SmokeReport, *, as_json: bool) -> None:
    """Print the report as JSON, or as a table and numerical results. Raises SmokeError if it has not passed."""
    if as_json:
        app.json(report.as_dict())
    else:
        print_report(app.out, report)
        print_lines(app.out, measured_numerics(report))
    if not report.passed:
        raise SmokeError(f"smoke checks failed for {cell.id}", code="smoke-failed")


def measured_numerics(report: SmokeReport) -> Iterator[str | Table]:
    """Yield the lines and tables of a report of the numerics checks, whose details a container wrote."""
    for result in report.results:
        details = result.details
        if rows := _rows(details.get("operations")):
            yield f"\n{result.check}: {shown(_device(details))}"
            yield _operations(rows)
        if rows := _rows(details.get("pairs")):
            yield "\nimplementations against each other"
            yield _pairs(rows)
        for name, reason in sorted(_fields(details.get("not_run")).items()):
            yield f"  not run: {shown(f'{name}: {reason}')}"


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _device(details: Mapping[str, Any]) -> str:
    device, versions = _fields(details.get("device")), _fields(details.get("versions"))
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    return f"{device.get('name')}{driver}; " + ", ".join(f"{name} {version}" for name, version in versions.items())


def _operations(rows: list[dict[str, Any]]) -> Table:
    table = Table("operation", "implementation", "dtype", "largest", "mean", "relative", "bound", "", wraps=("",))
    for row in rows:
        remarks = [
            text
            for key, text in (("repeatable", "not repeatable"), ("batch_invariant", "depends on the batch"))
            if row.get(key) is False
        ]
        table.add_row(
            shown(str(row.get("operation"))), shown(str(row.get("implementation"))), shown(str(row.get("dtype"))),
            *(_number(row.get(key)) for key in ("largest_absolute", "mean_absolute", "largest_relative", "bound")),
            ", ".join(remarks),
        )  # fmt: skip
    return table


def _pairs(rows: list[dict[str, Any]]) -> Table:
    table = Table("operation", "dtype", "one", "other", "largest", "mean", "relative", "bound")
    for row in rows:
        table.add_row(
            *(shown(str(row.get(key))) for key in ("operation", "dtype", "one", "other")),
            *(_number(row.get(key)) for key in ("largest_absolute", "mean_absolute", "largest_relative", "bound")),
        )
    return table


def _number(value: Any) -> str:
    return f"{value:.1e}" if isinstance(value, (int, float)) else "-"


def changed_numerics(comparison: Numerics) -> Iterator[str | Table]:
    """Yield the lines and tables of a comparison."""
    for device in comparison.compared:
        yield f"\nnumerical results on {shown(device.device)}: {device.equal} equal, {len(device.changes)} changed"
        table = Table("operation", "implementation", "dtype", "size", "why", wraps=("size", "why"), show_header=False)
        for change in device.changes:
            causes = [f"{cause.name} {cause.before or 'none'} -> {cause.after or 'none'}" for cause in change.causes]
            remarks = [*causes, *([] if change.repeatable else ["not repeatable"])]
            names = (shown(text) for text in (f"  {change.operation}", change.implementation, change.dtype))
            table.add_row(*names, size(change), shown(", ".join(remarks)))
        if device.changes:
            yield table
