"""The report of an audit: findings, worst first, and what each package runs on. As data and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from imagegen.audit import catalogue
from imagegen.audit.model import Finding, Severity
from imagegen.audit.torch_rule import Fit

# Raised whenever a check finds other things in the same files than before: two reports of one number can be compared.
AUDIT_FORMAT = 1

# On a GPU: by machine code; some library by PTX alone, which the driver compiles when it is first used; or not at all.
Runs = Literal["sass", "ptx", "no"]

_RANK = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(frozen=True)
class Verdict:
    """The GPUs and versions that one package runs with, as far as its files show."""

    package: str  # "vllm 0.24.0"
    gpus: Mapping[str, Runs] = field(default_factory=dict)  # "sm_90" -> ...; empty: it holds no GPU code
    torch: Fit | None = None  # None: it uses nothing of torch


@dataclass(frozen=True)
class Report:
    """The report about one subject. `gpus` maps each GPU, requested or not, to whether all of the subject runs on
    it.
    """

    subject: str
    findings: tuple[Finding, ...]  # as `ordered` has them
    verdicts: tuple[Verdict, ...]  # by package; those of which there is nothing to say are left out
    gpus: Mapping[str, bool]  # "sm_90" -> ..., by capability; empty: nothing here holds GPU code
    packages: int
    elf_files: int

    @property
    def passed(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """Severity -> how many findings, each severity."""
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
            "findings": [asdict(each) | {"title": catalogue.explain(each.id).title} for each in self.findings],
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
