"""imagegen report: write the matrix and its locked images as static pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import click

from imagegen import lock
from imagegen.app import cell_states, lock_history, site, site_folder, site_report, site_view, unlocked
from imagegen.app.audit import audit_report
from imagegen.app.launch import published_repository
from imagegen.app.packages import packages_of
from imagegen.app.publisher import expected_digest
from imagegen.app.unlocked import UnlockedCell
from imagegen.audit.model import Licence
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.compat import unconfirmed
from imagegen.core.errors import PublishError
from imagegen.core.text import counted
from imagegen.image import dockerfile, layers
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.publish.tags import TagInput, tags
from imagegen.spec.model import Cell
from imagegen.trust.known_licences import stored_licences, with_system
from imagegen.trust.sbom import sbom
from imagegen.wheels.wheelhouse import with_local_wheels

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("report")
@click.argument("pattern", metavar="[GLOB]", default="*", shell_complete=complete_cells)
@click.option(
    "-o",
    "--output",
    type=_FOLDER,
    metavar="DIR",
    required=True,
    help="Directory of the pages; an earlier report is replaced.",
)
@json_option("Print JSON: the index and the page of each cell.")
@pass_app
def command(app: App, *, pattern: str, output: Path, as_json: bool) -> None:
    """Write web pages with the state of the cells that match GLOB, and the contents of locked cells.

    The first page proposes an image by GPU, engine, CUDA and Python, with a command that runs it by digest, and shows
    why each cell has its state. Pages of locked cells show requirements, sizes, results of audit and smoke checks, and
    the history in git with sizes and today's verdicts. Their lock, SBOM and Dockerfile are files next to the page.
    Pages of other cells show the requirements of the matrix, and how to lock the cell. One page lists the packages of
    all locked cells, and each change of a lock has a page. Pages need no server, JavaScript or network. Prints the path
    of the first page.
    """
    site_folder.require_own(output)
    cells = app.session.matrix.select(pattern)
    read = {cell.id: cell_states.read_lock(app.session.lock_files, cell) for cell in app.session.matrix.all_cells}
    locks = {name: lock_file for name, lock_file in read.items() if isinstance(lock_file, Lock)}
    chosen = [cell for cell in cells if cell.id in locks]
    answers = app.session.judge.cell_answers(cells)
    states = {
        cell.id: cell_states.state(app.session.lock_files, cell, answers[cell.id], read[cell.id]) for cell in cells
    }
    whole = [with_local_wheels(locks[cell.id], app.project.store)[0] for cell in chosen]
    licences = stored_licences(whole, app.project.store)
    report = site_report.SiteReport(
        cells=tuple(cells),
        states=states,
        sheets=tuple(_sheet(app, cell, locks[cell.id], licences) for cell in chosen),
        unlocked=tuple(
            UnlockedCell(
                cell,
                cell_states.missing_here(app.session.matrices, cell, states[cell.id], None),
                unlocked.nearest(cell, app.session.matrix.cells(), locks),
            )
            for cell in cells
            if cell.id not in locks
        ),
        defaults=frozenset(app.session.matrix.defaults.values()),
        others=tuple(other for name, other in locks.items() if name not in {cell.id for cell in chosen}),
        packages=packages_of(app.session.matrices, whole, licences),
        descriptions=_descriptions(app),
        unconfirmed=unconfirmed(app.session.matrix.rules, dt.datetime.now(dt.UTC).date()),
    )
    files = site.render(report)
    site_folder.replace_report(output, files)
    first = str(output / "index.html")
    if as_json:
        app.json({"index": first, "cells": {cell.id: str(output / site_view.href(cell.id)) for cell in report.cells}})
        return
    app.progress.say(f"{counted(len(report.cells), 'cell')}, {len(report.sheets)} of them locked")
    click.echo(first)


def _descriptions(app: App) -> Mapping[str, str]:
    return {image: app.session.matrix.select(image)[0].description for image in app.session.matrix.defaults}


def _sheet(app: App, cell: Cell, locked: Lock, licences: Mapping[str, Licence]) -> site_report.CellReport:
    whole, lacking = with_local_wheels(locked, app.project.store)
    tested = cell_states.passed_smoke_report(app.project, cell, whole)
    return site_report.CellReport(
        cell=cell,
        lock=locked,
        stale=tuple(lock.stale(locked, cell)),
        layers=layers.layer_sizes(whole, app.project.store, whole=not lacking),
        history=lock_history.history(app.session, cell, locked),
        smoke=tested.report if tested else None,
        audit=audit_report(whole, cell, app.project.store),
        tag=local_tags(locked)[0],
        remote=_remote(app, cell, locked),
        downloads=_downloads(app, cell, whole, licences),
    )


def _downloads(app: App, cell: Cell, locked: Lock, licences: Mapping[str, Licence]) -> dict[str, tuple[str, bytes]]:
    """Return the files to download from a cell's page: title -> file name, content. No file is fetched for it."""
    files = {"lock": (f"{cell.id}.toml", app.session.lock_files.text(cell).encode())}
    if digest := expected_digest(locked, app.project.store, "zstd"):
        document = sbom(locked, digest, with_system(locked, licences, app.project.store))
        files["SBOM (CycloneDX)"] = (f"{cell.id}.cdx.json", document)
    if not cell.environments:
        text = dockerfile.render(locked, local_tags(locked)[0]).dockerfile
        files["Dockerfile"] = (f"{cell.id}.Dockerfile", text.encode())
    return files


def _remote(app: App, cell: Cell, locked: Lock) -> tuple[str, ...]:
    repository = published_repository(app.project, cell)
    if repository is None:
        return ()
    (default,) = app.session.matrix.select(cell.image)
    try:
        image_tags = tags(TagInput.of(locked, default.axes))
    except PublishError as error:
        app.progress.say(str(error))
        return ()
    return f"{repository}:{image_tags.mutable[0]}", f"{repository}:{image_tags.immutable}"
