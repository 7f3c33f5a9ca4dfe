"""imagegen audit: findings in cells, an image, installed packages or wheels."""

from __future__ import annotations

import gc
import json
from dataclasses import asdict
from pathlib import Path

import click

from imagegen.audit import finding_texts
from imagegen.audit.report import AuditReport
from imagegen.audit.sarif import LockLocation, document
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.audit_text import table, wrapped
from imagegen.cli.output import check_writable
from imagegen.core.errors import OptionConflictError


@click.command("audit")
@click.argument("subjects", nargs=-1, metavar="[CELL | WHEEL...]")
@click.option("--image", metavar="REF", help="An image in Docker or in a registry.")
@click.option("--site-packages", "site", metavar="DIR", type=click.Path(path_type=Path), help="Installed packages.")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help='The GPU to run on: sm_120, H100, "RTX 5090".')
@click.option("--driver", metavar="VERSION", help="The oldest NVIDIA driver to run with.")
@click.option("--torch", metavar="VERSION", help="The torch that wheels must run with.")
@click.option("--explain", metavar="[ID]", is_flag=False, flag_value="", help="Explain a finding and its fix.")
@click.option("--error", metavar="TEXT", help="The same as `imagegen doctor --log TEXT`.")
@click.option("--all", "everything", is_flag=True, help="Show notes, and all details.")
@json_option()
@click.option(
    "--sarif", "sarif_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write SARIF."
)
@click.pass_context
@pass_app
def command(
    app: App,
    ctx: click.Context,
    *,
    subjects: tuple[str, ...],
    image: str | None,
    site: Path | None,
    gpus: tuple[str, ...],
    driver: str | None,
    torch: str | None,
    explain: str | None,
    error: str | None,
    everything: bool,
    as_json: bool,
    sarif_file: Path | None,
) -> None:
    """Find faults that would appear on the GPU, without a GPU: symbols, GPU code, libraries, contents.

    The subject is a cell (its locked wheels, base, GPUs and driver), wheels, an image, or installed packages. Exit code
    1 when there is an error; warnings and notes do not count. With --error, 1 when something explains the text, else 2.
    """
    if explain is not None or error is not None:
        several = explain is not None and error is not None
        _explain_text(
            app,
            ctx,
            explain,
            error,
            as_json=as_json,
            alone=not (several or any((subjects, image, site, gpus, driver, torch, sarif_file))),
        )
        return
    # late, because it imports the readers of images
    from imagegen.app.audit_subjects import AuditArguments, find_gpus, run_audits

    required = AuditArguments(subjects, find_gpus(app.session, gpus), driver, image, site, torch)
    required.check()
    if sarif_file:
        check_writable(sarif_file)
    # The data of an environment's 76,000 files have no reference cycles, and the search for cycles takes CPU time:
    # reading takes 3.2 s with it and 2.8 s without (2026-11-21).
    gc.disable()
    ctx.call_on_close(gc.enable)
    reports: list[AuditReport] = []
    sources: dict[str, LockLocation] = {}
    for report, source in run_audits(app.session, required):
        reports.append(report)
        sources |= {report.subject: source} if source else {}
        if not as_json:
            _print(app, report, everything=everything, each_package=required.loose)
    if sarif_file:
        sarif_file.write_text(json.dumps(document(reports, sources), indent=2) + "\n", encoding="utf-8")
    if as_json:
        app.json([report.as_dict() for report in reports])
    elif any(report.findings for report in reports):
        hint = "" if everything else "; --all shows notes and all details"
        app.progress.say(f"`imagegen audit --explain ID` explains a finding and its fix{hint}")
    if not all(report.passed for report in reports):
        ctx.exit(1)


def _print(app: App, report: AuditReport, *, everything: bool, each_package: bool) -> None:
    for line in table(report, app.out.width, everything=everything, each_package=each_package):
        app.out.print(line, soft_wrap=True)


def _explain_text(
    app: App, ctx: click.Context, name: str | None, error: str | None, *, as_json: bool, alone: bool
) -> None:
    """Explain a finding's id or a pasted message. Raises OptionConflictError if other arguments are given."""
    if not alone:
        summary = "--explain and --error explain a text, without an audit"
        raise OptionConflictError(summary, fix="leave out the other arguments")
    if error is None:
        _explain(app, name or "", as_json=as_json)
        return
    from imagegen.cli import doctor_command  # late, because an audit needs no engine

    ctx.invoke(doctor_command.command, log=error, as_json=as_json)


def _explain(app: App, name: str, *, as_json: bool) -> None:
    """Print an entry of the catalogue, or all titles without a name."""
    entries = {name: finding_texts.explain(name)} if name else finding_texts.catalogue()
    if as_json:
        app.json({finding_id: asdict(entry) for finding_id, entry in entries.items()})
        return
    for entry_id, entry in entries.items():
        app.out.print(f"{entry_id} ({entry.severity}): {entry.title}", soft_wrap=True)
        if name:
            for text in (entry.meaning, f"fix: {entry.fix}", f"source: {entry.source}"):
                for line in wrapped(text, app.out.width, indent=2, hang=0):
                    app.out.print(line, soft_wrap=True)
