"""The report of an audit: findings, worst first, and what each package runs on. As data and as JSON."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from imagegen import __version__
from imagegen.audit import finding_texts
from imagegen.audit.model import Finding, Severity
from imagegen.audit.torch_rule import Fit
from imagegen.core.text import shown

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
    """The report about one subject. `gpus` maps each GPU, requested or not, to whether all of the subject runs on
    it.
    """

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


# Findings as SARIF, which CI systems show next to the lines of a change.
#
# Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0 (errata 01); for the fields that
# GitHub reads: docs.github.com, "SARIF support for code scanning", read 2026-11-21.

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_LONGEST = 1000  # characters of a message; GitHub shows the first 1024 of a text


@dataclass(frozen=True)
class LockLocation:
    """The file that chose the packages, for CI to point at: a lock. `lines` count from 1."""

    path: str  # relative to the repository's root, as CI has it
    lines: Mapping[str, int] = field(default_factory=dict)  # "vllm 0.24.0" -> where it stands


def document(reports: Sequence[AuditReport], sources: Mapping[str, LockLocation]) -> dict[str, Any]:
    """Return one run with all findings: GitHub rejects several of one tool. `sources` maps the names of subjects."""
    ids = sorted({finding.id for report in reports for finding in report.findings})
    driver = {"name": "imagegen audit", "version": __version__, "rules": [_rule(name) for name in ids]}
    results = list(_results(reports, sources, {name: index for index, name in enumerate(ids)}))
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(name: str) -> dict[str, Any]:
    entry = finding_texts.explain(name)
    return {
        "id": name,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.meaning},
        "help": {"text": f"{entry.meaning}\n\nWhat helps: {entry.fix}\n\nSource: {entry.source}"},
        "defaultConfiguration": {"level": _LEVELS[entry.severity]},
    }


def _results(
    reports: Sequence[AuditReport], sources: Mapping[str, LockLocation], indexes: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    seen: Counter[str] = Counter()
    for report in reports:
        for finding in report.findings:
            same = _fingerprint(report.subject, finding)
            seen[same] += 1
            about = ": ".join(part for part in (finding.package, finding.path, finding.evidence) if part)
            yield {
                "ruleId": finding.id,
                "ruleIndex": indexes[finding.id],
                "level": _LEVELS[finding.severity],
                "message": {"text": _shortened("\n".join([about, *finding.details]))},
                "locations": [_location(report.subject, finding, sources.get(report.subject))],
                "partialFingerprints": {"primaryLocationLineHash": f"{same}:{seen[same]}"},  # GitHub's name for it
            }


def _location(subject: str, finding: Finding, source: LockLocation | None) -> dict[str, Any]:
    """Return the location of a finding: a line of the lock if there is one, else the file itself."""
    path = source.path if source else finding.path or finding.package or subject
    inside = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
    uri = quote(inside or "packages", errors="backslashreplace")
    line = source.lines.get(finding.package, 1) if source else 1
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}}
    names = [shown(name) for name in (finding.package, finding.path) if name]
    if names:
        qualified, kind = ": ".join([shown(subject), *names]), "resource" if finding.path else "module"
        location["logicalLocations"] = [{"name": names[-1], "fullyQualifiedName": qualified, "kind": kind}]
    return location


def _fingerprint(subject: str, finding: Finding) -> str:
    """Return a digest of a finding that does not change with the package's version or the evidence."""
    name = finding.package.partition(" ")[0]
    identity = [subject, finding.id, name, finding.path or ""]
    return hashlib.sha256("\0".join(identity).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _shortened(text: str) -> str:
    text = shown(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
