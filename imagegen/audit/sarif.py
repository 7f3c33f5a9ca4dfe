"""Findings as SARIF, which CI systems show next to the lines of a change.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0 (errata 01); for the fields that GitHub
reads: docs.github.com, "SARIF support for code scanning", read 2026-11-21.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from imagegen import __version__
from imagegen.audit import finding_texts
from imagegen.audit.model import Finding, Severity
from imagegen.audit.report import AuditReport
from imagegen.core.text import shown

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
