"""imagegen test: the smoke checks alone."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen import pipeline, smoke
from imagegen.cli.app import App, pass_app
from imagegen.cli.report import check_writable, print_report
from imagegen.engine import Engine
from imagegen.errors import EngineError, SmokeError


@click.command("test")
@click.argument("cell")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@pass_app
def command(app: App, *, cell: str, as_json: bool, junit: Path | None, require_gpu: bool) -> None:
    """Run the smoke checks of CELL's image, which must be in Docker already."""
    (chosen, *others) = app.matrix.select(cell)
    if others:
        raise click.UsageError(f"{cell} matches several cells; name one")
    lock = app.fresh_lock(chosen)
    tag = pipeline.tags(lock)[1]
    if junit:
        check_writable(junit)
    with Engine.connect(app.settings, app.progress) as engine:
        if engine.image_digest(tag) is None:
            raise EngineError(f"{tag} is not in Docker", fix=f"`imagegen build {chosen.id}`")
        report = smoke.run(engine, tag, lock, chosen.declarations, require_gpu=require_gpu, progress=app.progress)
    if junit:
        junit.write_text(report.junit(chosen.id), encoding="utf-8")
    if as_json:
        app.json(report.as_dict())
    else:
        print_report(app.out, report)
    if not report.passed:
        raise SmokeError(f"smoke checks failed for {chosen.id}")
