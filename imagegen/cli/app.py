"""The session of a command. Results go to stdout (`out`, `json`), messages to stderr (`progress`)."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from imagegen.app.session import Session
from imagegen.core import data
from imagegen.core.errors import ImagegenError, UsageError
from imagegen.core.progress import Output, PlainOutput, Terminal
from imagegen.core.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from imagegen.run.smoke import SmokeReport

# Variables with which users request terminal output on a pipe. Source: rich's Console.
_FORMATTING = ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class App(Session):
    """One run of the command line."""

    def __init__(self, env: Mapping[str, str], project: Path) -> None:
        self.console = _output(env, stderr=True)
        self.out = _output(env)
        super().__init__(env, project, Terminal(self.console))

    def json(self, value: Any) -> None:
        click.echo(json.dumps(value, indent=2, sort_keys=True))


def _output(env: Mapping[str, str], *, stderr: bool = False) -> Output:
    """Return an output without markup. rich decides on colours (NO_COLOR); only terminals wrap lines."""
    stream = sys.stderr if stderr else sys.stdout
    if not (stream and stream.isatty()) and not any(env.get(name) for name in _FORMATTING):
        return PlainOutput(stderr=stderr)
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in env:
        console.width = PlainOutput.width
    return console


pass_app = click.make_pass_decorator(App)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(text: str = "Print JSON.") -> Callable[[_Command], _Command]:
    """Return the option `--json`, the argument `as_json`; `text` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=text)


# Tables for terminals of any width and for pipes. Cells are not truncated, and lines have no trailing blanks.

_GAP = "  "  # between columns
_NARROW, _NARROWEST = 16, 8  # columns of a terminal; narrower text is hard to read, or unreadable


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


class Styled(str):
    """Text that a terminal shows in a style: "red", "bold". Source of the names: rich's styles."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: str, style: str) -> Styled:
        styled = super().__new__(cls, text)
        styled.style = style
        return styled


class Table:
    """Rows below headers. If the terminal is narrow, only columns in `wraps` are wrapped, at words.

    If it is too narrow for the other columns, each row has its first cell on a separate line, and the other cells
    indented below it.
    """

    def __init__(self, *headers: str, wraps: Collection[str] = (), show_header: bool = True) -> None:
        self._wraps = [header in wraps for header in headers]
        self._rows: list[Sequence[str]] = [[Styled(header, "bold") for header in headers]] if show_header else []

    def add_row(self, *cells: str) -> None:
        """Add a row. Raises ValueError if the numbers of cells and headers differ."""
        if len(cells) != len(self._wraps):
            raise ValueError(f"{len(cells)} cells for {len(self._wraps)} columns")
        self._rows.append(cells)

    def print(self, output: Output) -> None:
        """Print the lines for the width of `output`."""
        if isinstance(output, PlainOutput):
            widths = self._widths(0, output.width, _NARROW)
            for row in self._rows:
                for cell_lines in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
                    cells = zip(cell_lines, widths, strict=True)
                    padded = (text + " " * (width - _width(text)) for text, width in cells)
                    output.print(_GAP.join(padded).rstrip())
            return
        for line in self._lines(cast("Console", output)):
            output.print(line, soft_wrap=True)

    def _lines(self, console: Console) -> Iterator[Text]:
        from rich.text import Text

        rows = [[_rich(cell) for cell in row] for row in self._rows]
        widths = self._widths(0, console.width, _NARROW)
        if _total(widths) <= console.width:
            for row in rows:
                yield from _joined(row, widths, console)
            return
        widths = self._widths(1, console.width - len(_GAP), _NARROWEST)
        for first, *cells in rows:
            yield first
            for line in _joined(cells, widths, console):
                yield Text(_GAP) + line if line else line

    def _widths(self, start: int, width: int, least: int) -> list[int]:
        """Return the widths of the columns from `start` on.

        They fit into `width` if wrapped columns can have `least`.
        """
        natural = [max((_width(row[column]) for row in self._rows), default=0) for column in range(len(self._wraps))]
        columns = list(zip(natural, self._wraps, strict=True))[start:]

        def capped(cap: int) -> list[int]:
            return [min(size, cap) if wraps else size for size, wraps in columns]

        fitting = (widths for cap in range(width, least, -1) if _total(widths := capped(cap)) <= width)
        return next(fitting, capped(least))


def _width(text: str) -> int:
    """Return the number of terminal columns of a text."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _rich(text: str) -> Text:
    from rich.text import Text

    return Text(text, text.style if isinstance(text, Styled) else "")


def _joined(row: Sequence[Text], widths: Sequence[int], console: Console) -> Iterator[Text]:
    """Yield the lines of a row."""
    from rich.text import Text

    cells = [cell.wrap(console, max(width, 1), overflow="fold") for cell, width in zip(row, widths, strict=True)]
    for cell_lines in zip_longest(*cells, fillvalue=Text()):
        line = Text()
        for part, width in zip(cell_lines, widths, strict=True):
            part.rstrip()
            line += part + Text(" " * (width - part.cell_len) + _GAP)
        line.rstrip()
        yield line


def print_styled(output: Output, *texts: str) -> None:
    """Print texts, some of them `Styled`, as one line."""
    if isinstance(output, PlainOutput):
        output.print("".join(texts))
        return
    from rich.text import Text

    output.print(Text().join(map(_rich, texts)))


# Print results of commands, such as lines, tables and reports of checks.

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


def complete_cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
    """Return the images and cells whose names begin with `incomplete`; none after an error, which a shell cannot show.

    Cells are listed only after the full name of an image, because there are many.
    """
    try:
        matrix = App(os.environ, Path(ctx.find_root().params.get("project") or ".")).matrix
    except ImagegenError:
        return []
    images = [CompletionItem(name, help=matrix.select(name)[0].description) for name in matrix.defaults]
    cells = [CompletionItem(cell.id, help=cell.purpose) for cell in matrix.all_cells]
    matches = [image for image in images if image.value.startswith(incomplete)]
    if matches and not any(incomplete.startswith(image.value) for image in images):
        return matches
    return matches + [cell for cell in cells if cell.value.startswith(incomplete)]
