"""Print results of commands, such as lines, tables and reports of checks, and write documents."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagegen.cli.table import Styled, Table
from imagegen.core import data
from imagegen.core.errors import SmokeError, UsageError
from imagegen.core.progress import Output
from imagegen.core.text import shown

if TYPE_CHECKING:
    from imagegen.run.smoke.report import SmokeReport


def write_document(output: Path | None, document: bytes) -> None:
    """Write a document to a file, or to stdout if it is None. Raises UsageError if the file cannot be written."""
    if output is None:
        click.echo(document, nl=False)
        return
    try:
        data.write(output, document)
    except OSError as error:
        why = error.strerror or errno.errorcode.get(error.errno or 0)
        raise UsageError(f"{output} cannot be written", code="usage-output-unwritable", why=why) from error


_COLOUR = {"pass": "green", "skip": "yellow", "fail": "red", "crash": "red"}


def print_report(output: Output, report: SmokeReport) -> None:
    """Print a row for each check, and the number of checks by status."""
    table = Table("check", "result", "time", "", wraps=("",))
    for result in report.results:
        status = Styled(result.status, _COLOUR[result.status])
        table.add_row(result.check, status, f"{result.seconds:.1f} s", shown(result.explanation))
    table.print(output)
    output.print(", ".join(f"{count} {status}" for status, count in report.counts.items() if count))


def print_lines(output: Output, lines: Iterable[str | Table]) -> None:
    """Print lines and tables."""
    for line in lines:
        if isinstance(line, Table):
            line.print(output)
        else:
            output.print(line, soft_wrap=True)


def check_writable(file: Path) -> None:
    """Raise UsageError if the file cannot be written, before checks that take minutes."""
    try:
        file.open("a").close()
    except OSError as error:
        raise UsageError(
            "the report cannot be written", code="usage-output-unwritable", where=str(file), why=error.strerror
        ) from error


@contextmanager
def failed_checks_printed(output: Output) -> Iterator[None]:
    """Print the report of smoke checks that fail in the context."""
    try:
        yield
    except SmokeError as error:
        from imagegen.run.smoke.report import SmokeFailed  # late, because few builds fail so

        if isinstance(error, SmokeFailed):
            print_report(output, error.report)
        raise
