"""Rules as clauses: each clause is a set of literals of which at least one must hold.

`when A and B then C and D` is (not A or not B or C) and (not A or not B or D); `when A conflict C and D` is (not A or
not C or not D). A literal about a package also holds where the package is not installed, unless it is a requirement's,
or `then` names the package without a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.ranges import VersionRange

from imagegen.plan.matrix.conditions import ENV, NAMED, NO_CUDA, condition_parts
from imagegen.plan.matrix.rule import Rule
from imagegen.plan.rules.facts import versions_in


@dataclass(frozen=True)
class Literal:
    """`name` fits `text`, or does not when `negated`; it must be installed for that where it is `required`."""

    name: str
    text: str
    negated: bool = False
    required: bool = False

    @property
    def label(self) -> str | None:
        """The local version label of the literal, or None."""
        return self.text[1:] if self.text.startswith("+") and not self.name.startswith(ENV) else None

    @property
    def range(self) -> VersionRange | None:
        """The versions that `text` admits; None for a label, a value or a variable."""
        if self.label is not None or self.name in NAMED or self.name.startswith(ENV) or self.text == NO_CUDA:
            return None
        return versions_in(self.text)

    @property
    def specifier(self) -> str | None:
        """The literal as a PEP 440 specifier, if one can express it."""
        if self.range is None:
            return None
        if not self.negated:
            return self.text
        inverse = self.range.complement().to_specifier_set()
        return None if inverse is None else str(inverse)


def clauses(rule: Rule) -> tuple[tuple[Literal, ...], ...]:
    unless = literals(rule.when, negated=True)
    if rule.conflict:
        return ((*unless, *literals(rule.conflict, negated=True)),)
    return tuple((*unless, literal) for literal in literals(rule.then, required=True))


def literals(side: Mapping[str, str], *, negated: bool = False, required: bool = False) -> tuple[Literal, ...]:
    """Return one literal for each part of each condition of a rule's side, or of its contrary.

    Where `required`, a condition that admits every version means that the package must be installed.
    """
    return tuple(
        Literal(name, part, negated, required and not part)
        for name, text in sorted(side.items())
        for part in condition_parts(text)
    )
