"""imagegen mirror: copy all files of locks to a directory or registry."""

from __future__ import annotations

from dataclasses import asdict

import click

from imagegen import mirror
from imagegen.app.check_locks import require_unchanged_copies
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.config import MIRROR_VARIABLE
from imagegen.core.context import Context
from imagegen.core.progress import human
from imagegen.core.registry.layout import place
from imagegen.core.text import counted
from imagegen.mirror import listing as mirror_listing


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
    at = place(destination, "--to")
    listings: dict[str, mirror_listing.MirrorArtifact] = {}
    for chosen in app.session.matrix.select(cell):
        locked = app.session.lock_files.fresh(chosen)
        require_unchanged_copies(app.session.lock_files, chosen, locked)  # writes patches into the store
        for part, lock in locked.by_cell(chosen):
            mirror_listing.collect(lock, part.recipes, app.project.context_for(part))
            listings |= {listing.name: listing for listing in mirror_listing.listings(lock, app.project.store)}
    filled = mirror.fill(at, [*listings.values()], Context(app.project.store, app.project.settings, app.progress))
    if as_json:
        app.json({**asdict(filled), "to": destination})
        return
    app.progress.say(f"{counted(filled.files, 'file')}, {human(filled.size)}, {filled.added} of them new")
    app.progress.say(f"with {MIRROR_VARIABLE}={destination}, builds try this mirror first")
    for name in filled.names:
        click.echo(name)
