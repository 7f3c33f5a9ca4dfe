"""The summary of a harvest: which verdicts on cells it changes, and which package alone changes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.compat.metadata import PackageReleases
from imagegen.spec.model import Cell
from tests.support.golden import Golden
from tests.support.matrix_samples import SMALL, load
from tests.support.package_metadata import package
from tools.harvest.verdicts import HarvestSummary, compare, render

NUMPY = package("numpy", {"2.0": ()})


@pytest.fixture
def cells(tmp_path: Path) -> tuple[Cell, ...]:
    """Cells with torch ==2.13.0 and any numpy."""
    return tuple(load(tmp_path, SMALL).all_cells)


def harvested(cells: tuple[Cell, ...], before: PackageReleases, after: PackageReleases) -> HarvestSummary:
    known = {before.name: before, "numpy": NUMPY}
    return compare({before.name: before}, [after], cells, [], known.get)


def test_a_new_release_that_a_cell_waits_for_changes_its_verdict(cells: tuple[Cell, ...], golden: Golden) -> None:
    old = package("torch", {"2.12.0": ()})
    summary = harvested(cells, old, package("torch", {"2.12.0": (), "2.13.0": ("numpy<2",)}))
    assert [(each.package, each.added) for each in summary.news] == [("torch", ("2.13.0",))]
    assert {each.cell for each in summary.changes} == {cell.id for cell in cells} == set(summary.news[0].cells)
    assert {each.after.answer for each in summary.changes} == {"incompatible"}
    text = render(summary)
    golden.check(text)
    assert f"| {cells[0].id} | " in text


def test_a_release_that_no_cell_is_about_changes_no_verdict(cells: tuple[Cell, ...]) -> None:
    old = package("torch", {"2.13.0": ()})
    summary = harvested(cells, old, package("torch", {"2.13.0": (), "2.14.0": ("numpy<2",)}))
    assert (summary.news[0].cells, summary.changes) == ((), ())
    assert "torch: 2.14.0 new\n" in render(summary)


def test_changed_and_gone_releases_are_told_apart(cells: tuple[Cell, ...]) -> None:
    old = package("torch", {"2.12.0": (), "2.13.0": ()})
    (news,) = harvested(cells, old, package("torch", {"2.13.0": ("numpy>=2",)})).news
    assert (news.added, news.changed, news.gone) == ((), ("2.13.0",), ("2.12.0",))


def test_a_later_day_alone_is_nothing_new(cells: tuple[Cell, ...]) -> None:
    old = package("torch", {"2.13.0": ()})
    summary = harvested(cells, old, replace(old, read="2026-12-01"))
    assert summary == HarvestSummary((), ())
    assert render(summary) == "Nothing new.\n"
