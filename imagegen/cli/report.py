"""The table that ends a build: check, result, time; and files that reports go to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from imagegen.cli.table import Table
from imagegen.core.errors import UsageError
from imagegen.core.text import shown
from imagegen.run.smoke import Report

_COLOUR = {"pass": "green", "skip": "yellow", "fail": "red", "crash": "red"}


def print_report(console: Console, report: Report) -> None:
    """Print one row per check, and the count of skipped ones."""
    table = Table("check", "result", "time", "", wraps=("",))
    for result in report.results:
        status = Text(result.status, style=_COLOUR[result.status])
        table.add_row(result.check, status, f"{result.seconds:.1f} s", shown(result.told))
    table.print(console)
    console.print(", ".join(f"{count} {status}" for status, count in report.counts.items() if count))


def print_lines(console: Console, lines: Iterable[str | Table]) -> None:
    """Print lines and tables, one after the other."""
    for line in lines:
        if isinstance(line, Table):
            line.print(console)
        else:
            console.print(line, soft_wrap=True)


def check_writable(file: Path) -> None:
    """Raise UsageError if the file cannot be written, before the checks, which take minutes."""
    try:
        file.open("a").close()
    except OSError as error:
        raise UsageError(
            "the report cannot be written", code="usage-output-unwritable", where=str(file), why=error.strerror
        ) from error
