"""imagegen doctor: would it run here, and what is wrong where it runs."""

from __future__ import annotations

import click

from imagegen import doctor
from imagegen.cli.app import App, pass_app
from imagegen.engine import Engine
from imagegen.errors import UsageError
from imagegen.matrix import models
from imagegen.preflight.suite.model import Image


@click.command("doctor")
@click.argument("cell", required=False)
@click.option("--container", metavar="NAME", help="Look at a container, running or ended, instead of this host.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
@pass_app
def command(app: App, ctx: click.Context, *, cell: str | None, container: str | None, as_json: bool) -> None:
    """Look at this host (would CELL's image run here?) or at a container.

    Exit code 1 when something stands in the way; warnings and notes do not.
    """
    if cell and container is not None:
        raise UsageError("a container knows its own cell", fix=f"leave out {cell}")
    if container is not None:
        with Engine.connect(app.settings, app.progress) as engine:
            diagnoses = [doctor.examine_container(engine, container, models.load(app.directories))]
    elif cell:
        locks = [(chosen, app.find_lock(chosen)) for chosen in app.matrix.select(cell)]
        diagnoses = [
            doctor.examine_host(app.settings, doctor.facts_of(chosen, lock, app.matrix.rules), lock)
            for chosen, lock in locks
        ]
    else:
        diagnoses = [doctor.examine_host(app.settings, Image())]
    if as_json:
        app.json([diagnosis.as_dict() for diagnosis in diagnoses])
    else:
        for diagnosis in diagnoses:
            click.echo(diagnosis.text(), nl=False)
    if not all(diagnosis.well for diagnosis in diagnoses):
        ctx.exit(1)
