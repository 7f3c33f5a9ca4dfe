"""imagegen render: print the Dockerfile of a cell."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import click

from imagegen.app.render import buildx_line, write_build
from imagegen.app.scratch_base import build_on_base
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.errors import OptionConflictError
from imagegen.image import dockerfile as recipe
from imagegen.lock import local_tags

_ONE_JOB = (
    "NOTE: for %s, the printed command compiles one file at a time; "
    '`--secret id=throttle,src=FILE` allows more, with {"jobs": 4, "threads": 1} in FILE'
)


@click.command("render")
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write DIR/CELL with the Dockerfile, the base and the wheels for a plain `docker buildx build`, and print "
    "the command; and DIR/docker-bake.json, for `docker buildx bake`.",
)
@click.option(
    "--scratch-base",
    is_flag=True,
    help="With -o: if the archive lacks locked Debian packages, use today's, from a scratch lock.",
)
@json_option("Print JSON: for each cell the Dockerfile, or with -o its folder.")
@pass_app
def command(app: App, *, cell: str, output: Path | None, scratch_base: bool, as_json: bool) -> None:
    """Print the Dockerfile of CELL."""
    if scratch_base and output is None:
        raise OptionConflictError("--scratch-base is for the base that -o writes", fix="add -o DIR")
    results: list[dict[str, str]] = []
    targets: dict[str, recipe.Rendered] = {}
    for chosen in app.session.matrix.select(cell, single=True):
        lock = app.session.lock_files.fresh(chosen)
        if output is None:
            text = recipe.render(lock, local_tags(lock)[0]).dockerfile
            results.append({"cell": chosen.id, "dockerfile": text})
            if not as_json:
                click.echo(text.encode(), nl=False)  # UTF-8 anywhere
            continue
        directory = output / chosen.id
        rendered = build_on_base(
            app.session, chosen, lock, partial(write_build, app.session, chosen, directory), scratch=scratch_base
        )
        targets[chosen.id] = rendered
        recipe.write_bake(output, targets)  # for each cell, because the next one may fail
        line = buildx_line(app.session, rendered.arguments)
        if lock.builds:
            app.progress.say(_ONE_JOB % ", ".join(f"{build.name} {build.version}" for build in lock.builds))
        results.append({"cell": chosen.id, "directory": str(directory), "command": line})
        if not as_json:
            app.progress.say(f"{directory} has all files of a plain build; build it with")
            click.echo(f"(cd {shlex.quote(str(directory))} && {line})")
    if as_json:
        app.json(results)
