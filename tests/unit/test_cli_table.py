"""Tables on terminals of any width: what identifies a row can be copied, and every word is there."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from imagegen.cli.table import Styled, Table
from imagegen.core.progress import PlainOutput

IDS = st.text("abc0123-", min_size=1, max_size=70)
WORDS = st.lists(st.text("xyz中é,.", min_size=1, max_size=12), max_size=20).map(" ".join)


def printed(table: Table, width: int, *, terminal: bool = False) -> str:
    file = io.StringIO()
    table.print(Console(file=file, width=width, force_terminal=terminal, highlight=False, markup=False))
    return file.getvalue()


@given(st.lists(st.tuples(IDS, IDS, WORDS), max_size=5), st.integers(2, 200))
def test_no_id_and_no_word_is_cut_at_any_width(rows: list[tuple[str, str, str]], width: int) -> None:
    table = Table("cell", "key", "why", wraps=("why",))
    for row in rows:
        table.add_row(*row)
    text = printed(table, width)
    lines = text.splitlines()
    words = text.split()
    assert all(line == line.rstrip() for line in lines)
    for cell, key, why in rows:
        assert cell in words
        assert key in words
        if sum(max(cell_len(value) for value in column) + 2 for column in zip(*rows, strict=True)) <= width:
            assert why in text
    assert sorted("".join(words)) == sorted("".join(["cellkeywhy", *("".join(row) for row in rows)]).replace(" ", ""))


@given(st.lists(st.tuples(IDS, WORDS), min_size=1, max_size=5), st.integers(90, 200))
def test_no_line_is_longer_than_a_terminal_that_fits_the_ids(rows: list[tuple[str, str]], width: int) -> None:
    table = Table("cell", "why", wraps=("why",))
    for row in rows:
        table.add_row(*row)
    assert all(cell_len(line) <= width for line in printed(table, width).splitlines())


def test_a_narrow_terminal_has_the_id_on_a_line_of_its_own() -> None:
    table = Table("cell", "locked", "for", wraps=("for",))
    table.add_row("a" * 63, "no", "words that say what it is for, and go on for more than one line of a terminal")
    lines = printed(table, 80).splitlines()
    assert lines[:3] == ["cell", "  locked  for", "a" * 63]
    assert [line[:10] for line in lines[3:]] == ["  no      ", " " * 10]
    assert len(printed(table, 160).splitlines()) == 2


def test_colours_leave_no_blanks_at_the_end() -> None:
    table = Table("check", "result")
    table.add_row("a", Styled("pass", "green"))
    table.add_row("b", Styled("a longer one", "red"))
    plain = printed(table, 80, terminal=True).replace("\x1b[", "<").splitlines()
    assert plain[1] == "a      <32mpass<0m"


def test_a_row_has_a_cell_for_each_header() -> None:
    with pytest.raises(ValueError, match="3 cells"):
        Table("one", "two").add_row("1", "2", "3")


def test_a_table_without_rows_is_its_header() -> None:
    assert printed(Table("one", "two"), 80) == "one  two\n"
    assert printed(Table("one", "two", show_header=False), 80) == ""


@given(st.lists(st.tuples(IDS, WORDS), max_size=5))
def test_a_pipe_has_the_lines_of_a_wide_terminal_without_styles(rows: list[tuple[str, str]]) -> None:
    table = Table("cell", "why", wraps=("why",))
    for cell, why in rows:
        table.add_row(Styled(cell, "red"), why)
    with contextlib.redirect_stdout(io.StringIO()) as piped:
        table.print(PlainOutput())
    assert piped.getvalue() == printed(table, PlainOutput.width)
