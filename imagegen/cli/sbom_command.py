"""imagegen sbom: print the bill of materials of a locked cell, as publishing attaches it."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app.publisher import known_digest
from imagegen.cli.app import App, complete_cells, pass_app
from imagegen.cli.output import write_document
from imagegen.trust.known_licences import read_known_licences
from imagegen.trust.sbom import sbom
from imagegen.wheels.wheelhouse import with_local_wheels


@click.command("sbom")
@click.argument("cell", shell_complete=complete_cells)
@click.option(
    "-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write to FILE, not stdout."
)
@pass_app
def command(app: App, *, cell: str, output: Path | None) -> None:
    """Print the CycloneDX document about CELL's image: packages, sources, hashes and licences.

    The document names the image by its digest, which comes from the lock's record or from an earlier build. Licences of
    wheels that the store has not scanned are read from the index. Nothing is built or published.
    """
    chosen = app.session.matrix.select_one(cell)
    lock, _ = with_local_wheels(app.session.lock_files.fresh(chosen), app.project.store)
    document = sbom(
        lock,
        known_digest(app.session.lock_files, chosen, lock),
        read_known_licences(lock, app.project.context_for(chosen)),
    )
    write_document(output, document)
