"""The diagnosis of the doctor: the checks that ran, and their findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagegen.incontainer.preflight import formatting
from imagegen.incontainer.preflight.model import Finding
from imagegen.incontainer.preflight.table import Row

HOST = "this host"


@dataclass(frozen=True)
class Diagnosis:
    """The findings about one host or container; `cell` is what was to run there, or runs."""

    where: str  # HOST, or "container NAME"
    cell: str | None
    summary: str  # of the machine, in a line
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]  # worst first
    machine: Mapping[str, Any] = field(default_factory=dict)  # the facts, for JSON

    @property
    def well(self) -> bool:
        """True if no finding prevents a run: warnings and notes do not."""
        return not any(finding.severity == "error" for finding in self.findings)

    def text(self) -> str:
        """Return the report for a terminal: one row per check; a failed check shows its finding with its fix below."""
        subject = f"{self.where}, for {self.cell}" if self.cell and self.where == HOST else self.where
        return formatting.ascii_only(f"{subject}: {self.summary}\n") + formatting.table(self.rows, self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON: {"where", "cell", "well", "checks", "findings", "machine"}."""
        return {
            "where": self.where,
            "cell": self.cell,
            "well": self.well,
            "checks": [row._asdict() for row in self.rows],
            "findings": [finding._asdict() for finding in self.findings],
            "machine": dict(self.machine),
        }
