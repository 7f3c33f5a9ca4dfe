"""imagegen sbom: the bill of materials of a locked cell, as publishing attaches it."""

from __future__ import annotations

import errno
from pathlib import Path

import click

from imagegen.app.launch import known_digest
from imagegen.cli.app import App, pass_app
from imagegen.cli.completion import complete_cells
from imagegen.core import data
from imagegen.core.errors import UsageError
from imagegen.supply.trust.licences import read_known_licences
from imagegen.supply.trust.sbom import sbom
from imagegen.wheels import builds


@click.command("sbom")
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to FILE, not stdout."
)
@pass_app
def command(app: App, *, cell: str, output: Path | None) -> None:
    """Print the CycloneDX document about CELL's image: packages, sources, hashes and licences.

    The document names the image by its digest, which comes from the lock's record or from an earlier build. Licences of
    wheels that were never read here are read from the index; nothing is built or published.
    """
    chosen = app.matrix.select_one(cell)
    lock, _ = builds.with_local_wheels(app.fresh_lock(chosen), app.store)
    document = sbom(lock, known_digest(app, chosen, lock), read_known_licences(lock, app.context_for(chosen)))
    if output is None:
        click.echo(document, nl=False)
        return
    try:
        data.write(output, document)
    except OSError as error:
        why = error.strerror or errno.errorcode.get(error.errno or 0)
        raise UsageError(f"{output} cannot be written", code="usage-output-unwritable", why=why) from error
