"""The table of faults: what was done to imagegen, what it does, and whether it did.

A test that plays a fault carries `@pytest.mark.fault(area, tried, answer)`. `pytest -m fault --fault-table FILE` (as
`make faults` runs it) writes one row per distinct marker; a row survived only if every test that carries it passed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

AREAS = (
    "Killed and damaged",
    "Shared store",
    "Disk",
    "Network",
    "Offline",
    "Engine",
    "Wheels",
    "Source builds",
    "Audits",
    "Matrices, rules, locks",
    "Secrets",
    "Publishing",
    "Trust",
)
_HEAD = """\
# Faults

Faults and attacks that tests inject, and the behaviour of imagegen. `make faults` runs the tests and writes this page.

"""


def note(items: list[pytest.Item]) -> None:
    """Write each marker into its test's properties, which reports carry from worker processes to the table."""
    for item in items:
        for marker in item.iter_markers("fault"):
            area, tried, answer = marker.args
            if area not in AREAS:
                raise pytest.UsageError(f"{item.nodeid}: no such area of faults: {area}")
            item.user_properties.append(("fault", (area, tried, answer)))


class FaultTable:
    """Collects outcomes by marker and writes the page when the run ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[str, str, str], list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            for row in (value for name, value in report.user_properties if name == "fault"):
                area, tried, answer = row  # type: ignore[misc]
                self._rows.setdefault((area, tried, answer), []).append(report.outcome)

    def pytest_sessionfinish(self) -> None:
        text = _HEAD
        for area in AREAS:
            rows = [(key, outcomes) for key, outcomes in sorted(self._rows.items()) if key[0] == area]
            if rows:
                text += f"## {area}\n\n| what was done | what imagegen does | tries | survived |\n|---|---|---|---|\n"
                text += "".join(_row(tried, answer, outcomes) for (_, tried, answer), outcomes in rows) + "\n"
        self._path.write_text(text.rstrip() + "\n", encoding="utf-8")


def _row(tried: str, answer: str, outcomes: list[str]) -> str:
    bad = sorted({outcome for outcome in outcomes if outcome != "passed"})
    return f"| {tried} | {answer} | {len(outcomes)} | {', '.join(bad) or 'yes'} |\n"
