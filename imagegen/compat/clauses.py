"""Rules as clauses: each clause is a set of literals of which at least one must hold.

`when A and B then C and D` is (not A or not B or C) and (not A or not B or D); `when A conflict C and D` is (not A or
not C or not D). A literal about a package also holds where the package is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from packaging.ranges import VersionRange
from packaging.specifiers import SpecifierSet

from imagegen.compat.facts import ANY, Facts
from imagegen.matrix.fields import ENV, NAMED, NO_CUDA, VERSIONED
from imagegen.matrix.rule import Rule

Domains = Mapping[str, VersionRange]  # package -> the versions still possible


@dataclass(frozen=True)
class Literal:
    """`name` fits `text`, or does not when `negated`."""

    name: str
    text: str
    negated: bool

    @property
    def range(self) -> VersionRange | None:
        """The versions at which the literal holds; None when it speaks of a label, a value or a variable."""
        if self.text.startswith("+") or self.name in NAMED or self.name.startswith(ENV) or self.text == NO_CUDA:
            return None
        inside = SpecifierSet(self.text or ANY).to_range()
        return inside.complement() if self.negated else inside

    @property
    def specifier(self) -> str | None:
        """The literal as a PEP 440 specifier, where one can say it."""
        if self.range is None:
            return None
        if not self.negated:
            return self.text
        inverse = self.range.to_specifier_set()
        return None if inverse is None else str(inverse)

    def holds(self, facts: Facts, domains: Domains) -> bool | None:
        """True or False where the facts decide it; None where they leave it open."""
        if self.text.startswith("+"):
            return self._has_label(facts)
        if self.range is None:
            value = self._value(facts)
            return None if value is None else fnmatchcase(value, self.text) is not self.negated
        if self.name in facts.names:  # there is no CUDA, and a rule speaks of its versions
            return self.negated
        fact = facts.versions.get(self.name) or facts.packages.get(self.name)
        domain = fact.range if fact and self.name in facts.versions else domains.get(self.name)
        if domain is not None and domain.is_subset(self.range):
            return True
        if fact is None:  # it may be absent, and then nothing can be wrong with it
            return True if facts.closed and self.name not in VERSIONED else None
        return False if domain is not None and domain.is_disjoint(self.range) else None

    def _has_label(self, facts: Facts) -> bool | None:
        fact = facts.packages.get(self.name)
        if fact is None:
            return True if facts.closed else None
        return None if fact.local is None else (fact.local == self.text[1:]) is not self.negated

    def _value(self, facts: Facts) -> str | None:
        """What is known of something that the literal holds against a text."""
        if self.name.startswith(ENV):
            return None if facts.env is None else facts.env.get(self.name.removeprefix(ENV), "")
        version = facts.versions.get(self.name)
        return version.text if version else facts.names.get(self.name)


@dataclass(frozen=True)
class Clause:
    rule: Rule
    literals: tuple[Literal, ...]


def clauses(rule: Rule) -> tuple[Clause, ...]:
    unless = tuple(Literal(name, text, negated=True) for name, text in sorted(rule.when.items()))
    if rule.conflict:
        never = tuple(Literal(name, text, negated=True) for name, text in sorted(rule.conflict.items()))
        return (Clause(rule, unless + never),)
    return tuple(
        Clause(rule, (*unless, Literal(name, text, negated=False))) for name, text in sorted(rule.then.items())
    )
