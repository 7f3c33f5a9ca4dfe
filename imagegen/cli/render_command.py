"""imagegen render: print the Dockerfile of a cell."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from imagegen.app.render import render_cells, write_folders
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.errors import OptionConflictError

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
    if output is None:
        for cell_id, text in render_cells(app.session, cell):
            results.append({"cell": cell_id, "dockerfile": text})
            if not as_json:
                click.echo(text.encode(), nl=False)  # UTF-8 anywhere
    else:
        for folder in write_folders(app.session, cell, output, scratch_base=scratch_base):
            if folder.builds:
                app.progress.say(_ONE_JOB % ", ".join(f"{build.name} {build.version}" for build in folder.builds))
            results.append({"cell": folder.cell, "directory": str(folder.directory), "command": folder.command})
            if not as_json:
                app.progress.say(f"{folder.directory} has all files of a plain build; build it with")
                click.echo(f"(cd {shlex.quote(str(folder.directory))} && {folder.command})")
    if as_json:
        app.json(results)
