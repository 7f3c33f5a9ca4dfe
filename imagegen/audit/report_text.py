"""Lines of text about a report: its verdicts, its result, and all of it in plain text."""

from __future__ import annotations

from collections.abc import Iterator

from imagegen.audit.finding_texts import explain
from imagegen.audit.model import Severity
from imagegen.audit.report import AuditReport, PackageVerdict, Runs, by_package
from imagegen.audit.torch_users import Fit
from imagegen.core.text import counted

_FEW = 3  # releases of torch that a line lists one by one
_NOUNS = {"error": "error", "warning": "warning", "info": "note"}
_RUNS: dict[Runs, str] = {"sass": "runs on", "ptx": "partly by PTX on", "no": "not on"}


def report_lines(report: AuditReport, *, everything: bool) -> Iterator[str]:
    """Yield the lines of a report: findings by package, worst first, their fixes, the verdicts and the result.

    `everything` includes notes.
    """
    findings = [finding for finding in report.findings if everything or finding.severity is not Severity.INFO]
    for package, group in by_package(findings).items():
        yield package or report.subject
        for finding in group:
            yield f"  {finding.severity:<9}{finding.id}{f': {finding.path}' if finding.path else ''}"
            yield f"    {finding.evidence}"
            yield from (f"      {line}" for line in finding.details)
    for name in dict.fromkeys(finding.id for finding in findings if finding.severity is not Severity.INFO):
        yield f"fix for {name}: {explain(name).fix}"
    yield from map(verdict_line, report.verdicts)
    yield result_line(report)


def verdict_line(verdict: PackageVerdict) -> str:
    """Return a line such as "vllm 0.24.0: built for torch 2.11; runs on sm_90; partly by PTX on sm_120"."""
    clauses = [_torch(verdict.torch)] if verdict.torch else []
    for kind, words in _RUNS.items():
        if gpus := [gpu for gpu, runs in verdict.gpus.items() if runs == kind]:
            clauses.append(f"{words} {', '.join(gpus)}")
    return f"{verdict.package}: {'; '.join(clauses)}"


def _torch(fit: Fit) -> str:
    """Return the torch of a package's symbols, and the torch of its metadata if that differs."""
    if not fit.minors:
        return "wants symbols that no known torch has" + (f", and says torch {fit.declared}" if fit.declared else "")
    releases = " or ".join(fit.minors) if len(fit.minors) < _FEW else f"{fit.minors[0]} to {fit.minors[-1]}"
    if fit.stable:
        return f"runs with torch {releases} (stable ABI)"
    if fit.declared in fit.minors:
        return f"built for torch {fit.declared}"
    return f"built for torch {releases}" + (f", and says {fit.declared}" if fit.declared else "")


def result_line(report: AuditReport) -> str:
    """Return the subject with the numbers of findings and files, and the GPUs on which it runs."""
    counts = ", ".join(counted(number, _NOUNS[severity]) for severity, number in report.counts.items())
    clauses = [f"{counts} in {counted(report.packages, 'package')}, {counted(report.elf_files, 'ELF file')}"]
    for words, runs in (("its GPU code runs on", True), ("not on", False)):
        if gpus := [gpu for gpu, verdict in report.gpus.items() if verdict is runs]:
            clauses.append(f"{words} {', '.join(gpus)}")
    return f"{report.subject}: {'; '.join(clauses)}"
