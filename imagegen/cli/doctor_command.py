"""imagegen doctor: check a host, a container or a log."""

from __future__ import annotations

from typing import TextIO

import click

from imagegen.checks.preflight.model import Image
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.errors import EngineError, OptionConflictError
from imagegen.core.oci import MACHINES
from imagegen.engine import Engine
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.run import doctor
from imagegen.run.doctor_log import LONGEST_LOG
from imagegen.spec import model_types
from imagegen.spec.model import Cell


@click.command("doctor")
@click.argument("cell", required=False, shell_complete=complete_cells)
@click.option("--container", metavar="NAME", help="Check a container, running or ended, instead of this host.")
@click.option(
    "--fabric", is_flag=True, help="Examine how GPUs and hosts are connected; with CELL, also run NCCL in its image."
)
@click.option("--log", metavar="FILE", type=click.File(errors="replace"), help="Explain a log; - is stdin.")
@json_option()
@click.pass_context
@pass_app
def command(
    app: App,
    ctx: click.Context,
    *,
    cell: str | None,
    container: str | None,
    fabric: bool,
    log: TextIO | None,
    as_json: bool,
) -> None:
    """Check this host (for CELL's image, if named) or a container, or explain a log (of CELL's platform, if named).

    Exit code 1 when a check fails or a log is explained, 2 if no known fault explains it; warnings and notes do not
    count.
    """
    if log:
        if fabric or container is not None:
            raise OptionConflictError("--log explains only a file", fix="leave out the other options")
        machine = MACHINES[app.session.matrix.select_one(cell).platform] if cell else None
        models = model_types.load(app.project.matrix_directories)
        text, packages = log.read(LONGEST_LOG), app.session.matrices.harvested
        diagnoses = [
            doctor.examine_log(log.name, text, models, machine, rules=app.session.matrix.rules, packages=packages)
        ]
    else:
        diagnoses = _examine(app, cell, container, fabric=fabric)
    if as_json:
        app.json([diagnosis.as_dict() for diagnosis in diagnoses])
    else:
        for diagnosis in diagnoses:
            click.echo(diagnosis.text(), nl=False)
    codes = {diagnosis.exit_code for diagnosis in diagnoses}
    ctx.exit(1 if 1 in codes else max(codes, default=0))


def _examine(app: App, cell: str | None, container: str | None, *, fabric: bool) -> list[doctor.Diagnosis]:
    """Examine this host or a container. Raises OptionConflictError for options that exclude each other."""
    if cell and container is not None:
        raise OptionConflictError("a container names its cell", fix=f"leave out {cell}")
    if fabric and container is not None:
        raise OptionConflictError("--fabric examines this host", fix="leave out --container")
    if fabric:
        return [_fabric(app, chosen) for chosen in (app.session.matrix.select(cell) if cell else [None])]
    if container is not None:
        with Engine.connect(app.project.settings, app.progress) as engine:
            return [
                doctor.examine_container(
                    engine, container, model_types.load(app.project.matrix_directories), app.session.matrix.rules
                )
            ]
    if cell:
        locks = [(chosen, app.session.lock_files.find(chosen)) for chosen in app.session.matrix.select(cell)]
        return [
            doctor.examine_host(app.project.settings, doctor.facts_of(chosen, lock, app.session.matrix.rules), lock)
            for chosen, lock in locks
        ]
    return [doctor.examine_host(app.project.settings, Image())]


def _fabric(app: App, cell: Cell | None) -> doctor.Diagnosis:
    """Examine this host's connections. For a cell with an image in the engine, run NCCL in a container of it."""
    host = doctor.gather()
    if cell is None:
        return doctor.examine_fabric(Image(), None, host, doctor.Measured())
    lock = app.session.lock_files.find(cell)
    facts = doctor.facts_of(cell, lock, app.session.matrix.rules)
    return doctor.examine_fabric(
        facts, lock, host, _measured(app, cell, lock) if host.machine.gpus else doctor.Measured()
    )


def _measured(app: App, cell: Cell, lock: Lock | None) -> doctor.Measured:
    """Run the smoke check of NCCL in a container of the cell's image, if the engine has it and it is for CUDA."""
    from imagegen.run import smoke  # late, because checks of a host do not need it

    if cell.cuda_version is None:
        return doctor.Measured(reason=f"{cell.id} is for CPUs")
    if lock is None:
        return doctor.Measured(
            reason=f"nothing was measured, because {cell.id} has no lock (`imagegen lock {cell.id}`)"
        )
    tag = local_tags(lock)[1]
    default, locked = lock.by_cell(cell)[0]
    try:
        with Engine.connect(app.project.settings, app.progress) as engine:
            if engine.image_digest(tag) is None:
                return doctor.Measured(
                    reason=f"nothing was measured, because {tag} is not in Docker (`imagegen build {cell.id}`)"
                )
            report = smoke.run(
                engine,
                tag,
                locked,
                default.declarations,
                require_gpu=False,
                progress=app.progress,
                only=["fabric-cuda"],
            )
    except EngineError as error:
        return doctor.Measured(reason=f"nothing was measured: {error.what}")
    result = report.results[0]
    return doctor.Measured(result.status, result.reason, result.details)
