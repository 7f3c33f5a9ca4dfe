"""imagegen audit: findings in cells, an image, installed packages or wheels."""

from __future__ import annotations

import gc
import json
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.text import Text

from imagegen.audit import finding_texts
from imagegen.audit.check import audit
from imagegen.audit.model import Finding, Severity, Subject
from imagegen.audit.report import AuditReport, by_package
from imagegen.audit.report_text import result_line, verdict_line
from imagegen.audit.sarif import LockLocation, document
from imagegen.cli.app import App, json_option, pass_app
from imagegen.cli.output import check_writable
from imagegen.core.errors import OptionConflictError, UsageError
from imagegen.core.text import shown
from imagegen.core.types import Gpu
from imagegen.plan.matrix import model_types
from imagegen.plan.rules import Vocabulary

Audited = tuple[Subject, LockLocation | None]  # with the lock file of the subject, if the repository has it


@dataclass(frozen=True)
class AuditArguments:
    """The audit's arguments as typed. `words` are cells or wheels; `gpus` and `driver` are the target."""

    words: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    driver: str | None
    image: str | None
    site: Path | None
    torch: str | None

    @property
    def loose(self) -> bool:
        """True if the words are wheels, by name or as existing files."""
        return any(word.endswith(".whl") or Path(word).is_file() for word in self.words)

    def check(self) -> None:
        """Raise UsageError for arguments that contradict each other."""
        forms = [" ".join(self.words)] if self.words else []
        forms += [f"--image {self.image}"] if self.image is not None else []
        forms += [f"--site-packages {self.site}"] if self.site else []
        if not forms:
            fix = "name a cell (`imagegen list`), wheels, --image REF or --site-packages DIR"
            raise UsageError("no subject of an audit is named", code="usage-nothing-named", fix=fix)
        if len(forms) > 1:
            raise OptionConflictError(
                f"an audit has one subject, and {' and '.join(forms)} are several", fix="run an audit for each"
            )
        if self.torch is not None and not self.loose:
            fix = "leave it out" + (
                "; `imagegen why CELL --set torch=VERSION` asks about another" if self.words else ""
            )
            raise OptionConflictError("--torch is only for wheels, because the other subjects include torch", fix=fix)
        if self.driver is not None and not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2}", self.driver):
            fix = "write it as nvidia-smi shows it: 580.65.06, or 580 for the branch"
            raise UsageError(
                f'--driver "{self.driver}" is not a version of a driver', code="usage-invalid-value", fix=fix
            )


def subjects(app: App, required: AuditArguments) -> Iterator[Audited]:
    """Yield the requested subjects; each is read when it is yielded. Raises UsageError if one does not exist."""
    for subject, source in _read_subjects(app, required):
        gpus, driver = required.gpus or subject.gpus, required.driver or subject.driver
        yield replace(subject, gpus=gpus, driver=driver), source


def _read_subjects(app: App, required: AuditArguments) -> Iterator[Audited]:
    if required.image is not None:
        from imagegen.app import image_subject

        gpus = app.matrix.gpus.values()
        yield (
            image_subject.image_subject(required.image, required.gpus, app.settings, app.progress, known_gpus=gpus),
            None,
        )
    elif required.site:
        from imagegen.image.inventory.subjects import site_subject

        yield site_subject(required.site, required.gpus, app.progress, variables=app.env), None
    elif required.loose:
        from imagegen.audit.readers.loose_wheels import named_wheels_subject

        yield named_wheels_subject(required.words, required.gpus, required.torch), None
    else:
        yield from _cells(app, required)


def _cells(app: App, required: AuditArguments) -> Iterator[Audited]:
    pattern, *more_words = required.words
    if Path(pattern).is_dir():
        raise UsageError(
            f"{pattern} is a directory",
            code="usage-directory",
            fix=f"`--site-packages {pattern}` audits the packages in it",
        )
    if more_words:
        raise UsageError(
            f"{' '.join(required.words)} are several cells",
            code="usage-several-cells",
            fix='name one cell, or a glob such as "hopper-*"',
        )
    try:
        chosen = app.matrix.select(pattern)
    except UsageError as error:
        if not re.search("[:/]", pattern):
            raise
        raise UsageError(error.what, fix=f"`--image {pattern}` audits an image") from error
    if cpu := [cell.id for cell in chosen if cell.cuda_version is None and (required.gpus or required.driver)]:
        raise UsageError(
            f"{cpu[0]} is for no GPU",
            code="usage-no-gpu-cell",
            fix="leave out --gpu and --driver, or name a cell with CUDA",
        )
    from imagegen.app.assemble import require_wheels
    from imagegen.image.inventory.subjects import cell_subject
    from imagegen.plan.lock.environments import parts

    pairs = [pair for cell in chosen for pair in parts(cell, app.fresh_lock(cell))]  # one for each environment
    unique = {cell.id: (cell, require_wheels(app, cell, lock)) for cell, lock in pairs}
    for cell, lock in unique.values():
        yield cell_subject(lock, cell, app.context_for(cell)), lock_source(app.lock_path(cell))


def lock_source(lock: Path) -> LockLocation | None:
    """Return the location of a lock for CI, relative to the current directory; None for a lock outside of it."""
    path = os.path.relpath(lock)
    if path.startswith(".."):
        return None
    matches = re.finditer(r'^\[\[wheel\]\]\nname = "(.+)"\nversion = "(.+)"$', text := lock.read_text(), re.MULTILINE)
    lines = {f"{match[1]} {match[2]}": text.count("\n", 0, match.start()) + 2 for match in matches}
    return LockLocation(Path(path).as_posix(), lines)


# The report of an audit as text, with findings by package and their fixes, the worst first, and the result at the end.

_WIDEST = 100  # columns; longer lines are hard to read
_TERMINAL = 1000  # columns; wider outputs are not terminals
_FEW = 3  # details of a finding without --all
_LONGEST = 300  # characters of one of these: a C++ function can have a thousand
_COLOUR = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def table(report: AuditReport, width: int, *, everything: bool, each_package: bool) -> Iterator[Text]:
    """Yield the lines of the report.

    `everything` includes notes and all details; `each_package` lists what each package runs with and on.
    """
    listed = [finding for finding in report.findings if everything or finding.severity is not Severity.INFO]
    for package, findings in by_package(listed).items():
        yield from wrapped(package or report.subject, width, style="bold")
        for finding in findings:
            yield from _finding(finding, width, everything=everything)
    explained = dict.fromkeys(finding.id for finding in listed if finding.severity is not Severity.INFO)
    if explained:
        yield Text("fixes", style="bold")
        for name in explained:
            yield from wrapped(f"{name}: {finding_texts.explain(name).fix}", width, indent=2)
    if each_package:
        for verdict in report.verdicts:
            yield from wrapped(verdict_line(verdict), width)
    yield from wrapped(result_line(report), width)


def _finding(finding: Finding, width: int, *, everything: bool) -> Iterator[Text]:
    about = f"{finding.id}: {finding.path}" if finding.path else finding.id
    first, *continuation = wrapped(about, width, indent=11)
    first.plain = f"  {finding.severity:<9}{first.plain.lstrip()}"
    first.stylize(_COLOUR[finding.severity], 2, 2 + len(finding.severity))
    yield first
    yield from continuation
    shortened = (lambda line: line) if everything else _shortened
    yield from wrapped(shortened(finding.evidence), width, indent=4)
    few = finding.details if everything or len(finding.details) <= _FEW + 1 else finding.details[:_FEW]
    for line in few:
        yield from wrapped(shortened(line), width, indent=6)
    if remaining_count := len(finding.details) - len(few):
        yield Text(f"      and {remaining_count} more lines: --all")


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def wrapped(text: str, width: int, *, indent: int = 0, hang: int = 2, style: str = "") -> list[Text]:
    """Lines for a terminal of `width` columns. A pipe, whose lines are longer than any terminal's, gets one."""
    columns = min(width, _WIDEST) if width <= _TERMINAL else width
    first, continuation = " " * indent, " " * (indent + hang)
    lines = textwrap.wrap(
        shown(text), columns, initial_indent=first, subsequent_indent=continuation, break_on_hyphens=False
    ) or [first]
    return [Text(line, style) for line in lines]


# imagegen audit finds faults of GPU code by reading files.


@click.command("audit")
@click.argument("what", nargs=-1, metavar="[CELL | WHEEL...]")
@click.option("--image", metavar="REF", help="An image in Docker or in a registry.")
@click.option("--site-packages", "site", metavar="DIR", type=click.Path(path_type=Path), help="Installed packages.")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help='The GPU to run on: sm_120, H100, "RTX 5090".')
@click.option("--driver", metavar="VERSION", help="The oldest NVIDIA driver to run with.")
@click.option("--torch", metavar="VERSION", help="The torch that wheels must run with.")
@click.option("--explain", metavar="[ID]", is_flag=False, flag_value="", help="Explain a finding and its fix.")
@click.option("--error", metavar="TEXT", help="Explain a pasted error message or traceback; - is stdin.")
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
    what: tuple[str, ...],
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
            alone=not (several or any((what, image, site, gpus, driver, torch, sarif_file))),
        )
        return
    required = AuditArguments(what, _gpus(app, gpus), driver, image, site, torch)
    required.check()
    if sarif_file:
        check_writable(sarif_file)
    # The data of an environment's 76,000 files have no reference cycles, and the search for cycles takes CPU time:
    # reading takes 3.2 s with it and 2.8 s without (2026-11-21).
    gc.disable()
    ctx.call_on_close(gc.enable)
    from imagegen.app.audit import refused_keywords  # late, because it imports the readers of images

    reports: list[AuditReport] = []
    sources: dict[str, LockLocation] = {}
    for subject, source in subjects(app, required):
        reports.append(audit(subject, tuple(app.matrix.gpus.values()), refused_keywords(app, subject)))
        sources |= {subject.name: source} if source else {}
        if not as_json:
            _print(app, reports[-1], everything=everything, each_package=required.loose)
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


def _gpus(app: App, names: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs with these names. Raises UsageError for an unknown GPU."""
    vocabulary = Vocabulary.of(app.matrix) if names else None
    gpus_by_name = {gpu.name: gpu for name in names if vocabulary for gpu in vocabulary.gpu(name)}
    return tuple(sorted(gpus_by_name.values(), key=lambda gpu: tuple(map(int, gpu.capability.split(".")))))


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
    from imagegen.run import doctor, doctor_log  # late, because an audit needs no engine

    if error == "-":
        with click.open_file("-", errors="replace") as stream:
            error = stream.read(doctor_log.LONGEST_LOG)
    models = model_types.load(app.matrix_directories)
    diagnosis = doctor.examine_log("the message", error, models, rules=app.matrix.rules, packages=app.harvested)
    if as_json:
        app.json(diagnosis.as_dict())
    else:
        click.echo(diagnosis.text(), nl=False)
    ctx.exit(diagnosis.exit_code)


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
