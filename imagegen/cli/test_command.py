"""imagegen test: the smoke checks alone, or numerical measurements alone."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click

from imagegen.cli import numerics_table
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.report_command import check_writable, print_lines, print_report
from imagegen.core.errors import EngineError, SmokeError, UsageError
from imagegen.image import layers
from imagegen.image.layers.image import local_tags
from imagegen.incontainer.smoke.table import applicable
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.run import numerics, smoke
from imagegen.run.engine import Engine
from imagegen.run.smoke import parts
from imagegen.supply.export.export import read_results
from imagegen.supply.publish.attachments import SmokeRequirement, attestation_of, save_attestation
from imagegen.wheels import builds


@click.command("test")
@click.argument("cell")
@json_option("Print the report as JSON.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@click.option("--numerics", "measure", is_flag=True, help="Measure numerical differences in place of the smoke checks.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help="Run nothing: take the results that run_image.py of `imagegen export` wrote on another host.",
)
@pass_app
def command(
    app: App, *, cell: str, as_json: bool, junit: Path | None, require_gpu: bool, measure: bool, results: Path | None
) -> None:
    """Run the smoke checks of CELL's image, which must be in Docker.

    With --numerics, measure instead how far its numerical operations, and its trainer and rollout engine, are from a
    float64 reference and from each other; `imagegen diff` compares the results of two images.
    """
    chosen = app.matrix.select_one(cell)
    lock = app.fresh_lock(chosen)
    names = numerics.CHECKS if measure else ()
    if not applicable(parts(lock), names):
        raise UsageError(f"{chosen.id} has no numerics to measure", code="usage-no-numerics", why="it holds no torch")
    if junit:
        check_writable(junit)
    if results:
        image, report = _read(app, chosen, lock, results, names, require_gpu=require_gpu)
    else:
        image, report = _run(app, chosen, lock, names, require_gpu=require_gpu)
    if measure:
        numerics.remember(app.store, image, report)
    if junit:
        junit.write_text(report.junit(chosen.id), encoding="utf-8")
    if as_json:
        app.json(report.as_dict())
    else:
        print_report(app.out, report)
        print_lines(app.out, numerics_table.measured(report))
    if not report.passed:
        raise SmokeError(f"smoke checks failed for {chosen.id}", code="smoke-failed")


def _run(
    app: App, cell: Cell, lock: Lock, names: Collection[str], *, require_gpu: bool
) -> tuple[str, smoke.SmokeReport]:
    """Run the checks in `names`, or those that need not be named. Returns the image's digest and the report."""
    tag = local_tags(lock)[1]
    with Engine.connect(app.settings, app.progress) as engine:
        image = engine.image_digest(tag)
        if image is None:
            raise EngineError(f"{tag} is not in Docker", code="engine-no-image", fix=f"`imagegen build {cell.id}`")
        return image, smoke.run(
            engine, tag, lock, cell.declarations, require_gpu=require_gpu, progress=app.progress, only=names
        )


def _read(
    app: App, cell: Cell, lock: Lock, path: Path, names: Collection[str], *, require_gpu: bool
) -> tuple[str, smoke.SmokeReport]:
    """Read the results of another host; the store keeps a smoke test that passed, for `publish` and `report`."""
    lock = builds.with_local_wheels(lock, app.store)[0]
    image = layers.built_digest(lock, app.store)
    if image is None:
        raise SmokeError(
            f"{cell.id} was not built here", code="smoke-not-built", fix=f"`imagegen export {cell.id}`, which builds it"
        )
    required = SmokeRequirement.of(image, lock, cell.declarations, require_gpu=require_gpu)
    report = read_results(path, required, applicable(parts(lock), names), cell.id)
    if report.passed and not names:
        save_attestation(app.store, attestation_of(report, required, lock))
    return image, report
