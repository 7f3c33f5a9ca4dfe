"""Rules as clauses.

A clause is a set of literals of which at least one must hold.

`when A and B then C and D` is (not A or not B or C) and (not A or not B or D); `when A conflict C and D` is (not A or
not C or not D); each gets the literals of `unless` too. A literal about a package also holds where the package is not
installed, unless it is a requirement's, or of `unless`, or `then` names the package without a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from packaging.ranges import VersionRange

from imagegen.compat.facts import versions_in
from imagegen.compat.rule import ENV, NAMED, NO_CUDA, Rule, condition_parts


@dataclass(frozen=True)
class Literal:
    """`name` fits `text`, or does not when `negated`; it must be installed for that where it is `required`."""

    name: str
    text: str
    negated: bool = False
    required: bool = False

    @cached_property
    def label(self) -> str | None:
        """The local version label of the literal, or None."""
        return self.text[1:] if self.text.startswith("+") and not self.name.startswith(ENV) else None

    @cached_property
    def is_of_versions(self) -> bool:
        """True if the literal is about versions, and not about a label, a value or a variable."""
        return not (self.label is not None or self.name in NAMED or self.name.startswith(ENV) or self.text == NO_CUDA)

    @cached_property
    def range(self) -> VersionRange | None:
        """The versions that `text` admits; None for a literal that is not about versions."""
        return versions_in(self.text) if self.is_of_versions else None

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
    unless = (*literals(rule.when, negated=True), *(Literal(*item, required=True) for item in rule.unless.items()))
    if rule.conflict:
        return ((*unless, *literals(rule.conflict, negated=True)),)
    return tuple((*unless, literal) for literal in literals(rule.then, required=True))


def literals(side: Mapping[str, str], *, negated: bool = False, required: bool = False) -> tuple[Literal, ...]:
    """Return one literal for each part of each condition of a rule's side, or of its contrary.

    Where `required`, a condition that admits every version means that the package must be installed.
    """
    return _literals(tuple(sorted(side.items())), negated, required)


@cache
def _literals(side: tuple[tuple[str, str], ...], negated: bool, required: bool) -> tuple[Literal, ...]:
    """Return the literals of `literals`: several problems about one question have most rules in common."""
    return tuple(
        Literal(name, part, negated, required and not part) for name, text in side for part in condition_parts(text)
    )
