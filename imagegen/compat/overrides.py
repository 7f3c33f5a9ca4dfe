"""Overrides of declared requirements, by cells and by projects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from imagegen.compat.derived import derived_rule
from imagegen.compat.facts import Facts, versions_in
from imagegen.compat.rule import Override, PinOverride, Rule, is_surrounding
from imagegen.compat.verdict import Conflict

if TYPE_CHECKING:
    from imagegen.compat.knowledge import RuleSubject

_LABEL = re.compile(r"\+[\w.]+")  # of a version in a specifier; facts keep labels apart


def rules(subject: RuleSubject) -> Iterator[Rule]:
    """Yield a rule for each override of a cell; it replaces the declared requirements."""
    image = subject.facts.image
    for override in subject.facts.overrides:
        if override.specifier is None:
            yield _override_rule(image, override, {}, {override.package: ""})
        elif override.specifier:
            yield _override_rule(image, override, {override.package: _LABEL.sub("", override.specifier)}, {})


def _override_rule(image: str, override: Override, then: dict[str, str], conflict: dict[str, str]) -> Rule:
    return derived_rule(
        f"override:{override.package}",
        f"{image} has {override}: {override.because}",
        then=then,
        conflict=conflict,
        source=override.source or f"the overrides of {image} in the matrix",
        date="",
        kind="pip-refuses",
        fix=f"Leave {override.package} to the override, or change it in the matrix.",
    )


def add_overrides(conflict: Conflict, pin_overrides: Iterable[PinOverride], facts: Facts) -> Conflict:
    """Return the conflict with how to override its requirements, and the projects that do so with such versions.

    A conflict that overrides cannot end is returned unchanged.
    """
    if conflict.kind != "pip-refuses":
        return conflict
    stated = tuple(_requirements(conflict))
    names = dict.fromkeys(name for _, _, name in stated)
    pins = [f"{name}{_pin(facts, name)}" for name in names]
    shipped = tuple(
        override
        for override in pin_overrides
        if any(_overrides(override, *requirement) for requirement in stated) and _installs(override, facts)
    )
    return replace(conflict, override=", ".join(pins), overridden_by=shipped)


def _requirements(conflict: Conflict) -> Iterator[tuple[str, str, str]]:
    """Yield (package, its releases as a specifier, required package) for each declared requirement in the conflict."""
    for rule in conflict.rules:
        if rule.kind == "pip-refuses":
            for name in (*rule.then, *rule.conflict):
                if not is_surrounding(name):
                    yield from ((package, rule.when[package], name) for package in rule.leaders)


def _overrides(override: PinOverride, package: str, releases: str, name: str) -> bool:
    same = (override.package, override.requires) == (package, name)
    return same and not versions_in(override.releases).is_disjoint(versions_in(releases.partition(" +")[0]))


def _installs(override: PinOverride, facts: Facts) -> bool:
    fact = facts.packages.get(override.requires)
    return fact is None or not fact.range.is_disjoint(versions_in(override.installs))


def _pin(facts: Facts, name: str) -> str:
    fact = facts.packages.get(name)
    if fact is None or fact.text == "any version":
        return ""
    return f"=={fact.text}" if fact.version is not None or fact.text[:1].isdigit() else fact.text
