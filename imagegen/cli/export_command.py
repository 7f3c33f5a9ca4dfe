"""imagegen export: an image as a squashfs file."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app.assemble import assemble_cell
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.progress import human
from imagegen.core.store.images import require_new_file
from imagegen.export import squashfs


@click.command("export")
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "--squashfs",
    "file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a squashfs for enroot and pyxis to FILE.",
)
@click.option("--no-audit", is_flag=True, help="Skip the audit that runs before the image is made.")
@json_option("Print JSON: the file, its bytes, and the files in it.")
@pass_app
def command(app: App, *, cell: str, file: Path, no_audit: bool, as_json: bool) -> None:
    """Write CELL's image as a file, for hosts without a Docker engine.

    enroot and the Slurm plugin pyxis start FILE. mksquashfs writes it, without root.
    """
    chosen = app.session.matrix.select_one(cell)
    require_new_file(file)
    squashfs.require_program(app.project.settings.env)
    _, image = assemble_cell(app.session, chosen, audit=not no_audit)
    written = squashfs.write(image, file, app.project.store, app.project.settings.env, app.progress)
    if as_json:
        app.json(written.as_dict())
        return
    unpacked, size = human(written.unpacked), human(written.size)
    app.progress.say(f"{chosen.id}: {written.files} files, {unpacked}; {file}: {size}")
    app.progress.say(f"run it with Slurm: imagegen launch {chosen.id} --for slurm --squashfs {file}")
    click.echo(written.image)
