"""The findings of `imagegen doctor` about a host or a container.

A host and a container get the startup checks too (`checks.preflight`): on the host itself, and by a program that
is started in the container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagegen.checks.preflight import formatting
from imagegen.checks.preflight.model import Finding
from imagegen.checks.preflight.table import Row
from imagegen.run.doctor.log import UNKNOWN

HOST = "this host"


@dataclass(frozen=True)
class Diagnosis:
    """The findings about one host or container; `cell` is the cell that should run there, or that runs."""

    where: str  # HOST, or "container NAME"
    cell: str | None
    summary: str  # of the machine, in a line
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]  # worst first
    machine: Mapping[str, Any] = field(default_factory=dict)  # the facts, for JSON

    @property
    def passed(self) -> bool:
        """True if no finding prevents a run: warnings and notes do not."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """1 if a finding prevents a run, 2 if a part of a log has no explanation, else 0."""
        return 1 if not self.passed else 2 * any(finding.severity == UNKNOWN for finding in self.findings)

    def text(self) -> str:
        """Return the report for a terminal: one row per check; a failed check shows its finding with its fix below."""
        subject = f"{self.where}, for {self.cell}" if self.cell and self.where == HOST else self.where
        return formatting.ascii_only(f"{subject}: {self.summary}\n") + formatting.table(self.rows, self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON: {"where", "cell", "well", "checks", "findings", "machine"}."""
        return {
            "where": self.where,
            "cell": self.cell,
            "well": self.exit_code == 0,
            "checks": [row._asdict() for row in self.rows],
            "findings": [finding._asdict() for finding in self.findings],
            "machine": dict(self.machine),
        }
