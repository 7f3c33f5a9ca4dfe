"""imagegen doctor: check a host, a container or a log."""

from __future__ import annotations

import os

import click

from imagegen.app.diagnose import examine, examine_log
from imagegen.cli.app import App, complete_cells, json_option, pass_app
from imagegen.core.errors import OptionConflictError
from imagegen.run.doctor.log import LONGEST_LOG

_FILES = (".log", ".txt", ".out", ".err")  # ends of the names of files, which may not exist


@click.command("doctor")
@click.argument("cell", required=False, shell_complete=complete_cells)
@click.option("--container", metavar="NAME", help="Check a container, running or ended, instead of this host.")
@click.option(
    "--fabric", is_flag=True, help="Examine how GPUs and hosts are connected; with CELL, also run NCCL in its image."
)
@click.option("--log", metavar="FILE", help="Explain a log or a pasted message: a file, its text, or - for stdin.")
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
    log: str | None,
    as_json: bool,
) -> None:
    """Check this host (for CELL's image, if named) or a container, or explain a log (of CELL's platform, if named).

    Exit code 1 when a check fails or a log is explained, 2 if no known fault explains it; warnings and notes do not
    count.
    """
    if log is not None:
        if fabric or container is not None:
            raise OptionConflictError("--log explains only a text", fix="leave out the other options")
        diagnoses = [examine_log(app.session, *_read(ctx, log), cell)]
    else:
        diagnoses = examine(app.session, cell, container, fabric=fabric)
    if as_json:
        app.json([diagnosis.as_dict() for diagnosis in diagnoses])
    else:
        for diagnosis in diagnoses:
            click.echo(diagnosis.text(), nl=False)
    codes = {diagnosis.exit_code for diagnosis in diagnoses}
    ctx.exit(1 if 1 in codes else max(codes, default=0))


def _read(ctx: click.Context, log: str) -> tuple[str, str]:
    """Return the name and the contents of a log: of a file, of stdin, or the text itself."""
    is_name = len(log.split()) == 1 and (log == "-" or "/" in log or log.endswith(_FILES))
    if not is_name and not os.path.exists(log):
        return "the message", log[:LONGEST_LOG]
    with click.File(errors="replace").convert(log, None, ctx) as stream:
        return stream.name, stream.read(LONGEST_LOG)
