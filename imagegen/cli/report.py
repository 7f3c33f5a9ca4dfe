"""The table that ends a build: check, result, time."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from imagegen.smoke import Report

_COLOUR = {"pass": "green", "skip": "yellow", "fail": "red", "crash": "red"}


def print_report(console: Console, report: Report) -> None:
    """One row per check, skips counted and shown."""
    table = Table("check", "result", "time", "", box=None, pad_edge=False)
    for result in report.results:
        colour = _COLOUR.get(result.status, "red")
        table.add_row(result.check, f"[{colour}]{result.status}[/{colour}]", f"{result.seconds:.1f} s", result.reason)
    console.print(table)
    counts = {status: sum(result.status == status for result in report.results) for status in _COLOUR}
    console.print(", ".join(f"{count} {status}" for status, count in counts.items() if count), highlight=False)
