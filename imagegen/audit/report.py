"""The report of an audit: findings, worst first, and what each package runs on. As data and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from imagegen.audit import finding_texts
from imagegen.audit.model import Finding, Severity
from imagegen.audit.torch_users import Fit

# Raise it whenever a check reports something else for the same files. Reports of one number can be compared.
AUDIT_FORMAT = 1

# How a package runs on a GPU: by machine code, with some library only by PTX, which the driver compiles at the first
# use, or not at all.
Runs = Literal["sass", "ptx", "no"]

_RANK = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(frozen=True)
class PackageVerdict:
    """The GPUs and versions that one package runs with, as far as its files show."""

    package: str  # "vllm 0.24.0"
    gpus: Mapping[str, Runs] = field(default_factory=dict)  # "sm_90" -> ...; empty if it holds no GPU code
    torch: Fit | None = None  # None if it uses nothing of torch


@dataclass(frozen=True)
class AuditReport:
    """The report about a subject. `gpus` maps each GPU, requested or not, to whether all of the subject runs on it."""

    subject: str
    findings: tuple[Finding, ...]  # in the order of `ordered`
    verdicts: tuple[PackageVerdict, ...]  # by package; packages without a verdict are left out
    gpus: Mapping[str, bool]  # "sm_90" -> ..., by capability; empty if no file holds GPU code
    packages: int
    elf_files: int

    @property
    def passed(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of findings of each severity."""
        counted = Counter(finding.severity for finding in self.findings)
        return {severity.value: counted[severity] for severity in Severity}

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON: later versions add keys, and never remove one or change its meaning."""
        return {
            "audit": AUDIT_FORMAT,
            "subject": self.subject,
            "passed": self.passed,
            "counts": self.counts,
            "packages": self.packages,
            "elf_files": self.elf_files,
            "gpus": dict(self.gpus),
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "findings": [
                asdict(finding) | {"title": finding_texts.explain(finding.id).title} for finding in self.findings
            ],
        }


def joined_reports(subject: str, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Join the reports of environments, by their names, into one report in the form of `AuditReport.as_dict`.

    Its findings and verdicts name their `environment`; packages and files of several environments count in each.
    """
    documents = list(reports.values())
    rows = {
        key: [row | {"environment": name} for name, report in reports.items() for row in report[key]]
        for key in ("verdicts", "findings")
    }
    gpus = {gpu for report in documents for gpu in report["gpus"]}
    return {
        "audit": AUDIT_FORMAT,
        "subject": subject,
        "passed": all(report["passed"] for report in documents),
        "counts": {
            severity.value: sum(report["counts"][severity.value] for report in documents) for severity in Severity
        },
        "packages": sum(report["packages"] for report in documents),
        "elf_files": sum(report["elf_files"] for report in documents),
        "gpus": {gpu: all(report["gpus"].get(gpu, True) for report in documents) for gpu in sorted(gpus)},
        **rows,
    }


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once: errors, warnings, then notes, and each group by package."""
    return tuple(sorted(set(findings), key=_place))


def by_package(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Package -> its findings, worst first; the packages with the worst ones first."""
    groups: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=_place):
        groups.setdefault(finding.package, []).append(finding)
    return groups


def _place(finding: Finding) -> tuple[int, str, str, str, str, tuple[str, ...]]:
    rank = _RANK[finding.severity]
    return rank, finding.package, finding.path or "", finding.id, finding.evidence, finding.details
