"""Tables for terminals of any width and for pipes. Cells are not truncated, and lines have no trailing blanks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

from imagegen.core.progress import Output, PlainOutput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_GAP = "  "  # between columns
_NARROW, _NARROWEST = 16, 8  # columns of a terminal; narrower text is hard to read, or unreadable


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
