"""Declared requirements that are overridden: by a cell, or by projects, and how a user does it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from imagegen.plan.matrix.model import Cell, Override, PinOverride, Rule, is_surrounding
from imagegen.plan.rules.facts import Facts, versions_in
from imagegen.plan.rules.verdict import Conflict

_LABEL = re.compile(r"\+[\w.]+")  # of a version in a specifier; facts keep labels apart


def override_rules(cell: Cell) -> Iterator[Rule]:
    """Yield a rule for each override of a cell: in place of what is declared, it binds."""
    for each in cell.overrides:
        if each.specifier is None:
            yield _override_rule(cell, each, {}, {each.package: ""})
        elif each.specifier:
            yield _override_rule(cell, each, {each.package: _LABEL.sub("", each.specifier)}, {})


def _override_rule(cell: Cell, override: Override, then: dict[str, str], conflict: dict[str, str]) -> Rule:
    return Rule(
        id=f"override:{override.package}",
        when={},
        then=then,
        conflict=conflict,
        because=f"{cell.image} has {override}: {override.because}",
        source=override.source or f"the overrides of {cell.image} in the matrix",
        date="",
        severity="error",
        evidence="documented",
        kind="pip-refuses",
        fix=f"Leave {override.package} to the override, or change it in the matrix.",
    )


def add_overrides(conflict: Conflict, known: Iterable[PinOverride], facts: Facts) -> Conflict:
    """Return the conflict with how to override its requirements, and the projects that do so with such versions.

    A conflict that overriding does not end is returned as it is.
    """
    if conflict.kind != "pip-refuses":
        return conflict
    stated = tuple(_requirements(conflict))
    names = dict.fromkeys(name for _, _, name in stated)
    pins = [f"{name}{_pin(facts, name)}" for name in names]
    shipped = tuple(each for each in known if any(_overrides(each, *one) for one in stated) and _installs(each, facts))
    return replace(conflict, override=", ".join(pins), overridden_by=shipped)


def _requirements(conflict: Conflict) -> Iterator[tuple[str, str, str]]:
    """Yield (package, its releases as a specifier, what it requires) of what the conflict's rules say is declared."""
    for rule in conflict.rules:
        if rule.kind == "pip-refuses":
            for name in (*rule.then, *rule.conflict):
                if not is_surrounding(name):
                    yield from ((package, rule.when[package], name) for package in rule.leaders)


def _overrides(each: PinOverride, package: str, releases: str, name: str) -> bool:
    same = (each.package, each.requires) == (package, name)
    return same and not versions_in(each.releases).is_disjoint(versions_in(releases.partition(" +")[0]))


def _installs(each: PinOverride, facts: Facts) -> bool:
    fact = facts.packages.get(each.requires)
    return fact is None or not fact.range.is_disjoint(versions_in(each.installs))


def _pin(facts: Facts, name: str) -> str:
    fact = facts.packages.get(name)
    if fact is None or fact.text == "any version":
        return ""
    return f"=={fact.text}" if fact.version is not None or fact.text[:1].isdigit() else fact.text
