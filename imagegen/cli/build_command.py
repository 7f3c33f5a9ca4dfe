"""imagegen build: the whole road."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen import pipeline
from imagegen.cli.app import App, pass_app
from imagegen.cli.report import print_report
from imagegen.engine import Engine
from imagegen.errors import UsageError


@click.command("build")
@click.argument("cell")
@click.option("--no-test", is_flag=True, help="Skip the smoke checks.")
@click.option("--require-gpu", is_flag=True, help="Fail when a check is skipped for lack of a GPU.")
@click.option(
    "--output",
    metavar="oci:DIR",
    help="Write an OCI image layout to DIR instead of loading the image; needs no engine.",
)
@pass_app
def command(app: App, *, cell: str, no_test: bool, require_gpu: bool, output: str | None) -> None:
    """Build CELL from its lock, prove it, tag it. The last line on stdout is the image's digest."""
    chosen = app.matrix.select(cell)
    locks = [app.fresh_lock(each) for each in chosen]
    if output is not None:
        kind, _, directory = output.partition(":")
        if kind != "oci" or not directory or len(locks) != 1:
            raise UsageError(f"--output {output}: write oci:DIR, for one cell", fix="--output oci:./image")
        click.echo(pipeline.to_layout(locks[0], Path(directory), app.store, app.settings, app.progress))
        return
    with Engine.connect(app.settings, app.progress) as engine:
        for each, lock in zip(chosen, locks, strict=True):
            try:
                built = pipeline.to_engine(
                    lock,
                    app.imports(each),
                    engine,
                    app.store,
                    app.settings,
                    app.progress,
                    test=not no_test,
                    require_gpu=require_gpu,
                )
            except pipeline.SmokeFailed as error:
                print_report(app.console, error.report)
                raise
            if built.report:
                print_report(app.console, built.report)
            app.progress.say(f"{each.id} is {' and '.join(built.tags)}; try it:")
            app.progress.say(
                f"  {engine.docker_run_line(built.tags[0], 'python', '-c', 'import torch; print(torch.__version__)')}"
            )
            click.echo(built.digest)
