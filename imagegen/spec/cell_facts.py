"""Cells in the terms of imagegen.compat: their facts, and the nearest cell that no rule refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from imagegen import compat
from imagegen.compat.facts import Fact, Facts, facts_on
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.rule import Rule
from imagegen.compat.verdict import CellAnswer
from imagegen.spec.model import Cell, Requirement


def facts_of_cell(cell: Cell) -> Facts:
    """Return the facts before resolution: ranges, and labels that the cell's indexes will give."""
    packages = {requirement.component.package: _required(requirement) for requirement in cell.requirements}
    packages |= {name: replace(packages[name], described=True) for name in packages.keys() & cell.recipes.keys()}
    env = {variable.name: variable.value for variable in cell.env}
    return in_cell(facts_on(packages, cell.axes, cell.base.name, cell.base.libraries, env, closed=False), cell)


def in_cell(facts: Facts, cell: Cell) -> Facts:
    """Return the facts with the cell's decisions besides versions: GPUs, extras, accepted rules and overrides."""
    extras = {
        requirement.component.package: frozenset(requirement.extras)
        for requirement in cell.requirements
        if requirement.extras
    }
    return replace(
        facts, gpus=cell.gpus, extras=extras, accepts=tuple(cell.accepts), overrides=cell.overrides, image=cell.image
    )


def _required(requirement: Requirement) -> Fact:
    label = _label(requirement)
    if requirement.git:
        return replace(Fact.requested(f"=={requirement.git.metadata.version}", label), built=True)
    return Fact.requested(requirement.specifier, label)


def _label(requirement: Requirement) -> str | None:
    """Return the local version label of the build that a requirement selects, if it is known; PyPI has no labels.

    A commit counts as a label, since its version does not distinguish it from the release.
    """
    if requirement.git:
        return f"git.{requirement.git.name}".lower()
    if requirement.address:
        return requirement.address.version.local or ""
    foreign = requirement.component.compiled and not requirement.from_source  # from wherever a wheel is
    return requirement.label or ("" if requirement.index == "pypi" and not foreign else None)


def cell_answers(cells: Iterable[Cell], knowledge: Knowledge) -> dict[str, CellAnswer]:
    """Return the answer of rules and metadata for each cell, by cell id."""
    return compat.answer_each({cell.id: facts_of_cell(cell) for cell in cells}, knowledge)


def nearest_cell(rules: Iterable[Rule], cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """Return the cell of the same image that differs on the fewest axes and is not refused, by id among equals."""
    knowledge = Knowledge(tuple(rules))
    siblings = (other for other in cells if other.image == cell.image and other.id != cell.id)
    allowed = (other for other in siblings if compat.judge(knowledge, facts_of_cell(other)).answer != "incompatible")
    return min(allowed, key=lambda other: (_distance(cell, other), other.id), default=None)


def _distance(cell: Cell, other: Cell) -> int:
    return sum(value != other.axes[axis] for axis, value in cell.axes.items())
