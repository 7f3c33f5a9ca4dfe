"""For a combination that rules refuse: the nearest one in the matrix that they do not."""

from __future__ import annotations

from collections.abc import Iterable

from imagegen.plan.matrix.model import Cell
from imagegen.plan.matrix.rule import Rule
from imagegen.plan.rules.evaluate import judge_on
from imagegen.plan.rules.facts import facts_of_cell


def nearest(rules: Iterable[Rule], cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The cell of the same image that differs on the fewest axes and is not refused, by id among equals."""
    rules = tuple(rules)
    others = (other for other in cells if other.image == cell.image and other.id != cell.id)
    allowed = (other for other in others if judge_on(other.gpus, rules, facts_of_cell(other)).answer != "incompatible")
    return min(allowed, key=lambda other: (_distance(cell, other), other.id), default=None)


def _distance(one: Cell, other: Cell) -> int:
    return sum(value != other.axes[axis] for axis, value in one.axes.items())
