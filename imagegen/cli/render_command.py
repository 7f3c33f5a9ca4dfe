"""imagegen render: the recipe of a cell as a Dockerfile."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen import pipeline, recipe
from imagegen.cli.app import App, pass_app


@click.command("render")
@click.argument("cell")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write DIR: the Dockerfile, the base and the wheels that a plain `docker buildx build` needs.",
)
@pass_app
def command(app: App, *, cell: str, output: Path | None) -> None:
    """Print the Dockerfile of CELL."""
    for chosen in app.matrix.select(cell):
        lock = app.fresh_lock(chosen)
        rendered = recipe.render(lock, pipeline.tags(lock)[0])
        if output is None:
            click.echo(rendered.dockerfile, nl=False)
            continue
        recipe.write(rendered, lock, output / chosen.id, app.store, app.sources(chosen), app.progress)
        app.progress.say(f"{output / chosen.id}: build it there with")
        click.echo(rendered.command)
