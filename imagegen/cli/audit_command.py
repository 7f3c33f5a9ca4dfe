"""imagegen audit: what would fail on the GPU, read off the files."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import click

from imagegen.audit import catalogue
from imagegen.audit.check import audit
from imagegen.audit.report import Report
from imagegen.audit.sarif import Source, document
from imagegen.cli.app import App, pass_app
from imagegen.cli.audit_subjects import Wanted, subjects
from imagegen.cli.audit_table import table, wrapped
from imagegen.cli.report import check_writable
from imagegen.core.errors import UsageError
from imagegen.core.gpu import Gpu
from imagegen.plan import rules as compat


@click.command("audit")
@click.argument("what", nargs=-1, metavar="[CELL | WHEEL...]")
@click.option("--image", metavar="REF", help="An image in Docker or in a registry.")
@click.option("--site-packages", "site", metavar="DIR", type=click.Path(path_type=Path), help="Installed packages.")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help='What it is to run on: sm_120, H100, "RTX 5090".')
@click.option("--driver", metavar="VERSION", help="The oldest NVIDIA driver that it is to run with.")
@click.option("--torch", metavar="VERSION", help="The torch that wheels are to run with.")
@click.option("--explain", metavar="[ID]", is_flag=False, flag_value="", help="What a finding means and what helps.")
@click.option("--all", "everything", is_flag=True, help="Show notes, and all details.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--sarif", "sarif_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write SARIF."
)
@click.pass_context
@pass_app
def command(
    app: App,
    ctx: click.Context,
    *,
    what: tuple[str, ...],
    image: str | None,
    site: Path | None,
    gpus: tuple[str, ...],
    driver: str | None,
    torch: str | None,
    explain: str | None,
    everything: bool,
    as_json: bool,
    sarif_file: Path | None,
) -> None:
    """Find what would fail on the GPU, without one: symbols, GPU code, libraries, contents.

    The subject is a cell (its locked wheels, base, GPUs and driver), wheels, an image, or installed packages. Exit code
    1 when there is an error; warnings and notes do not count.
    """
    if explain is not None:
        if any((what, image, site, gpus, driver, torch, sarif_file)):
            raise UsageError(
                "--explain says what an id means and audits nothing",
                code="usage-option-conflict",
                fix="leave out the other arguments",
            )
        _explain(app, explain, as_json=as_json)
        return
    wanted = Wanted(what, _gpus(app, gpus), driver, image, site, torch)
    wanted.check()
    if sarif_file:
        check_writable(sarif_file)
    # What is kept of an environment's 76,000 files holds no cycles, and looking for some again and again takes long:
    # 3.2 s of the processor's with it and 2.8 s without until all was read (2026-11-21).
    gc.disable()
    ctx.call_on_close(gc.enable)
    reports: list[Report] = []
    sources: dict[str, Source] = {}
    for subject, source in subjects(app, wanted):
        reports.append(audit(subject, known=tuple(app.matrix.gpus.values())))
        sources |= {subject.name: source} if source else {}
        if not as_json:
            _print(app, reports[-1], everything=everything, each_package=wanted.loose)
    if sarif_file:
        sarif_file.write_text(json.dumps(document(reports, sources), indent=2) + "\n", encoding="utf-8")
    if as_json:
        app.json([report.as_dict() for report in reports])
    elif any(report.findings for report in reports):
        more = "" if everything else "; --all shows notes and all details"
        app.progress.say(f"`imagegen audit --explain ID` says what a finding means and what helps{more}")
    if not all(report.passed for report in reports):
        ctx.exit(1)


def _print(app: App, report: Report, *, everything: bool, each_package: bool) -> None:
    for line in table(report, app.out.width, everything=everything, each_package=each_package):
        app.out.print(line, soft_wrap=True)


def _gpus(app: App, names: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs with these names. Raises UsageError for an unknown GPU."""
    vocabulary = compat.Vocabulary.of(app.matrix) if names else None
    found = {gpu.name: gpu for name in names if vocabulary for gpu in vocabulary.gpu(name)}
    return tuple(sorted(found.values(), key=lambda gpu: tuple(map(int, gpu.capability.split(".")))))


def _explain(app: App, name: str, *, as_json: bool) -> None:
    """Print one entry of the catalogue, or without a name the titles of all."""
    entries = {name: catalogue.explain(name)} if name else catalogue.catalogue()
    if as_json:
        app.json({each: entry.model_dump(mode="json") for each, entry in entries.items()})
        return
    for each, entry in entries.items():
        app.out.print(f"{each} ({entry.severity}): {entry.title}", soft_wrap=True)
        if name:
            for text in (entry.meaning, f"what helps: {entry.fix}", f"source: {entry.source}"):
                for line in wrapped(text, app.out.width, indent=2, hang=0):
                    app.out.print(line, soft_wrap=True)
