"""The command line's session: results go to stdout through `out` or `json`, messages to stderr through `progress`."""

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

# Variables by which users have text laid out as for a terminal, on a pipe too. Source: rich's Console.
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
    """Text is shown as it is written; colours as rich decides (NO_COLOR); lines are cut for terminals only."""
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


# Tables for terminals of any width and for pipes: no cell is cut, and no line ends in blanks.

_GAP = "  "  # between columns
_NARROW, _NARROWEST = 16, 8  # columns of a terminal: text in less is hard to read, or not readable at all


def write_document(output: Path | None, document: bytes) -> None:
    """Write a document to a file, or to stdout where it is None. Raises UsageError where the file cannot be written."""
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
        made = super().__new__(cls, text)
        made.style = style
        return made


class Table:
    """Rows below headers. Columns in `wraps` are wrapped at words where the terminal is narrow, the others never.

    If the terminal is too narrow for those, each row has its first cell on a line of its own, which can be copied, and
    the rest indented below it.
    """

    def __init__(self, *headers: str, wraps: Collection[str] = (), show_header: bool = True) -> None:
        self._wraps = [header in wraps for header in headers]
        self._rows: list[Sequence[str]] = [[Styled(header, "bold") for header in headers]] if show_header else []

    def add_row(self, *cells: str) -> None:
        """Raises ValueError where the number of cells is not that of the headers."""
        if len(cells) != len(self._wraps):
            raise ValueError(f"{len(cells)} cells for {len(self._wraps)} columns")
        self._rows.append(cells)

    def print(self, output: Output) -> None:
        """Print the lines for the width of `output`."""
        if isinstance(output, PlainOutput):
            widths = self._widths(0, output.width, _NARROW)
            for row in self._rows:
                for parts in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
                    padded = (part + " " * (width - _width(part)) for part, width in zip(parts, widths, strict=True))
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
        for first, *rest in rows:
            yield first
            for line in _joined(rest, widths, console):
                yield Text(_GAP) + line if line else line

    def _widths(self, start: int, width: int, least: int) -> list[int]:
        """The widths of the columns from `start` on: `width` together where those that wrap have at least `least`."""
        natural = [max((_width(row[column]) for row in self._rows), default=0) for column in range(len(self._wraps))]
        columns = list(zip(natural, self._wraps, strict=True))[start:]

        def capped(cap: int) -> list[int]:
            return [min(size, cap) if wraps else size for size, wraps in columns]

        return next((found for cap in range(width, least, -1) if _total(found := capped(cap)) <= width), capped(least))


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
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
    """The lines of one row."""
    from rich.text import Text

    cells = [cell.wrap(console, max(width, 1), overflow="fold") for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=Text()):
        line = Text()
        for part, width in zip(parts, widths, strict=True):
            part.rstrip()
            line += part + Text(" " * (width - part.cell_len) + _GAP)
        line.rstrip()
        yield line


def print_styled(output: Output, *parts: str) -> None:
    """Print parts, some of them `Styled`, as one line."""
    if isinstance(output, PlainOutput):
        output.print("".join(parts))
        return
    from rich.text import Text

    output.print(Text().join(map(_rich, parts)))


# Results of commands: lines and tables, the checks of an image, files of reports.

_COLOUR = {"pass": "green", "skip": "yellow", "fail": "red", "crash": "red"}


def print_report(output: Output, report: SmokeReport) -> None:
    """Print one row per check, and the count of skipped ones."""
    table = Table("check", "result", "time", "", wraps=("",))
    for result in report.results:
        status = Styled(result.status, _COLOUR[result.status])
        table.add_row(result.check, status, f"{result.seconds:.1f} s", shown(result.explanation))
    table.print(output)
    output.print(", ".join(f"{count} {status}" for status, count in report.counts.items() if count))


def print_lines(output: Output, lines: Iterable[str | Table]) -> None:
    """Print lines and tables, one after the other."""
    for line in lines:
        if isinstance(line, Table):
            line.print(output)
        else:
            output.print(line, soft_wrap=True)


def check_writable(file: Path) -> None:
    """Raise UsageError if the file cannot be written, before the checks, which take minutes."""
    try:
        file.open("a").close()
    except OSError as error:
        raise UsageError(
            "the report cannot be written", code="usage-output-unwritable", where=str(file), why=error.strerror
        ) from error


def complete_cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
    """Return the images and cells whose names begin with `incomplete`; a shell has no place for an error.

    Cells come after an image's whole name, since there are many.
    """
    try:
        matrix = App(os.environ, Path(ctx.find_root().params.get("project") or ".")).matrix
    except ImagegenError:
        return []
    images = [CompletionItem(name, help=matrix.select(name)[0].description) for name in matrix.defaults]
    cells = [CompletionItem(cell.id, help=cell.purpose) for cell in matrix.all_cells]
    found = [image for image in images if image.value.startswith(incomplete)]
    whole = any(incomplete.startswith(image.value) for image in images)
    return found + [each for each in cells if each.value.startswith(incomplete)] if whole or not found else found
