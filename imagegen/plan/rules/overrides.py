"""Declared requirements that can be overridden: how, and the projects that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from imagegen.plan.matrix.model import PinOverride, is_surrounding
from imagegen.plan.rules.check import Conflict
from imagegen.plan.rules.facts import Facts, versions_in


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
