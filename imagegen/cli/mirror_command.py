"""imagegen mirror: copy all files of locks to a directory or registry."""

from __future__ import annotations

from dataclasses import asdict

import click

from imagegen.app.mirror_locks import mirror_locks
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.config import MIRROR_VARIABLE
from imagegen.core.progress import human
from imagegen.core.text import counted


@click.command("mirror")
@click.argument("cell", metavar="GLOB", shell_complete=complete_cells)
@click.option(
    "--to",
    "destination",
    required=True,
    metavar="DIR|REPOSITORY",
    help="./mirror (paths begin with /, ./, ../ or ~), or registry.example.com/team/mirror.",
)
@json_option("Print JSON: the files of these cells in the mirror.")
@pass_app
def command(app: App, *, cell: str, destination: str, as_json: bool) -> None:
    """Copy all files that the locks of the cells name: wheels, sources, the base's packages or layers.

    With IMAGEGEN_MIRROR=DIR|REPOSITORY, builds try the mirror first, and need no other source. Files that the mirror
    has are not copied again. If an image has several environments, the files of their locks are copied.
    """
    filled = mirror_locks(app.session, app.session.matrix.select(cell), destination)
    if as_json:
        app.json({**asdict(filled), "to": destination})
        return
    app.progress.say(f"{counted(filled.files, 'file')}, {human(filled.size)}, {filled.added} of them new")
    app.progress.say(f"with {MIRROR_VARIABLE}={destination}, builds try this mirror first")
    for name in filled.names:
        click.echo(name)
