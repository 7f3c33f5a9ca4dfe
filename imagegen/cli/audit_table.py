"""The report of an audit as text: findings by package, worst first, with their fixes; at the end the result."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from imagegen.audit import catalogue
from imagegen.audit.model import Finding, Severity
from imagegen.audit.report import Report, Runs, Verdict, by_package
from imagegen.audit.torch_rule import Fit
from imagegen.core.text import shown

_WIDEST = 100  # columns: longer lines are not read
_TERMINAL = 1000  # columns: no terminal is wider
_FEW = 3  # details of a finding, unless all are asked for
_LONGEST = 300  # characters of one of these: a C++ function can have a thousand
_COLOUR = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def table(report: Report, width: int, *, everything: bool, each_package: bool) -> Iterator[Text]:
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
        yield Text("what helps", style="bold")
        for name in explained:
            yield from wrapped(f"{name}: {catalogue.explain(name).fix}", width, indent=2)
    if each_package:
        for verdict in report.verdicts:
            yield from wrapped(_verdict(verdict), width)
    yield from wrapped(_summary(report), width)


def _finding(finding: Finding, width: int, *, everything: bool) -> Iterator[Text]:
    about = f"{finding.id}: {finding.path}" if finding.path else finding.id
    first, *rest = wrapped(about, width, indent=11)
    first.plain = f"  {finding.severity:<9}{first.plain.lstrip()}"
    first.stylize(_COLOUR[finding.severity], 2, 2 + len(finding.severity))
    yield first
    yield from rest
    shortened = (lambda line: line) if everything else _shortened
    yield from wrapped(shortened(finding.evidence), width, indent=4)
    few = finding.details if everything or len(finding.details) <= _FEW + 1 else finding.details[:_FEW]
    for line in few:
        yield from wrapped(shortened(line), width, indent=6)
    if more := len(finding.details) - len(few):
        yield Text(f"      and {more} more lines: --all")


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _verdict(verdict: Verdict) -> str:
    """Return a line such as: vllm 0.24.0: built for torch 2.11; runs on sm_90; partly by PTX on sm_120; not on
    sm_75.
    """
    parts = [_torch(verdict.torch)] if verdict.torch else []
    words: dict[Runs, str] = {"sass": "runs on", "ptx": "partly by PTX on", "no": "not on"}
    for kind, word in words.items():
        if found := [gpu for gpu, runs in verdict.gpus.items() if runs == kind]:
            parts.append(f"{word} {', '.join(found)}")
    return f"{verdict.package}: {'; '.join(parts)}"


def _torch(fit: Fit) -> str:
    """Return the torch of its symbols, and the one that its metadata names where that differs."""
    if not fit.minors:
        return "wants symbols that no known torch has" + (f", and says torch {fit.declared}" if fit.declared else "")
    releases = " or ".join(fit.minors) if len(fit.minors) < _FEW else f"{fit.minors[0]} to {fit.minors[-1]}"
    if fit.stable:
        return f"runs with torch {releases} (stable ABI)"
    if fit.declared in fit.minors:
        return f"built for torch {fit.declared}"
    return f"built for torch {releases}" + (f", and says {fit.declared}" if fit.declared else "")


def _summary(report: Report) -> str:
    named = {"error": "error", "warning": "warning", "info": "note"}
    counts = ", ".join(_count(number, named[severity]) for severity, number in report.counts.items())
    parts = [f"{counts} in {_count(report.packages, 'package')}, {_count(report.elf_files, 'ELF file')}"]
    for word, runs in (("its GPU code runs on", True), ("not on", False)):
        if gpus := [gpu for gpu, verdict in report.gpus.items() if verdict is runs]:
            parts.append(f"{word} {', '.join(gpus)}")
    return f"{report.subject}: {'; '.join(parts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def wrapped(text: str, width: int, *, indent: int = 0, hang: int = 2, style: str = "") -> list[Text]:
    """Lines for a terminal of `width` columns. A pipe, whose lines are longer than any terminal's, gets one."""
    columns = min(width, _WIDEST) if width <= _TERMINAL else width
    first, rest = " " * indent, " " * (indent + hang)
    lines = textwrap.wrap(
        shown(text), columns, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [first]
    return [Text(line, style) for line in lines]
