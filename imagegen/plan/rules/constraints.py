"""Version bounds from rules for the resolver, where packages' own metadata lacks them."""

from __future__ import annotations

from collections.abc import Iterable

from imagegen.plan.matrix.model import Cell, Rule
from imagegen.plan.rules.evaluate import forced
from imagegen.plan.rules.facts import facts_of_cell


def constraints(rules: Iterable[Rule], cell: Cell) -> tuple[str, ...]:
    """Return PEP 508 constraints, sorted, that follow in this cell from rules that can reject a build.

    A constraint binds a package only if it is installed. A bound that no specifier can express (a gap between two
    ranges) is left to the verdict on the lock.
    """
    binding = sorted((rule for rule in rules if rule.binding), key=lambda rule: rule.id)
    said = forced(binding, facts_of_cell(cell))
    return tuple(sorted({f"{literal.name}{literal.specifier}" for literal in said if literal.specifier}))
