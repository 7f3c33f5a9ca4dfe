"""The report of an audit as text: findings by package, the worst first, with their fixes, and the result at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from imagegen.audit import finding_texts
from imagegen.audit.model import Finding, Severity
from imagegen.audit.report import AuditReport, by_package
from imagegen.audit.report_text import result_line, verdict_line
from imagegen.core.text import shown

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
