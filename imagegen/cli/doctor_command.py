"""imagegen doctor: check a host, a container or a log."""

from __future__ import annotations

from typing import TextIO

import click

from imagegen.app.diagnose import examine, examine_log
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.errors import OptionConflictError
from imagegen.run.doctor.log import LONGEST_LOG


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
        diagnoses = [examine_log(app.session, log.name, log.read(LONGEST_LOG), cell)]
    else:
        diagnoses = examine(app.session, cell, container, fabric=fabric)
    if as_json:
        app.json([diagnosis.as_dict() for diagnosis in diagnoses])
    else:
        for diagnosis in diagnoses:
            click.echo(diagnosis.text(), nl=False)
    codes = {diagnosis.exit_code for diagnosis in diagnoses}
    ctx.exit(1 if 1 in codes else max(codes, default=0))
