"""The evaluator: generic over rules, three-valued, and able to say the smallest set of rules that is to blame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packaging.ranges import VersionRange

from imagegen.compat.clauses import Clause, Literal, clauses
from imagegen.compat.facts import Facts
from imagegen.compat.verdict import Conflict, Verdict
from imagegen.matrix.fields import VERSIONED
from imagegen.matrix.rule import Rule


@dataclass
class Propagation:
    """What follows from the rules: narrowed ranges, the literals that narrowed them, or a clause that cannot hold."""

    domains: dict[str, VersionRange]
    forced: list[Literal] = field(default_factory=list)
    contradiction: Clause | None = None


def judge(rules: Iterable[Rule], facts: Facts) -> Verdict:
    """Hold the facts against the rules. The order of the rules does not matter.

    Sound but not complete over ranges: "incompatible" and "compatible" are proven, anything else is "unknown". With
    exact versions of everything installed it always decides.
    """
    ordered = sorted(rules, key=lambda rule: rule.id)
    conflicts = _conflicts(ordered, facts)
    weights = {conflict.weight for conflict in conflicts}
    blamed = {rule.id for conflict in conflicts for rule in conflict.rules}
    waiting = tuple(rule.id for rule in ordered if rule.id not in blamed and not _obeyed(rule, facts))
    if "error" in weights:
        return Verdict("incompatible", conflicts, waiting)
    if "suspicion" in weights or any(rule.binding for rule in ordered if rule.id in waiting):
        return Verdict("unknown", conflicts, waiting)
    return Verdict("compatible", conflicts, waiting)


def propagate(rules: Sequence[Rule], facts: Facts) -> Propagation:
    """Unit propagation to a fixpoint: where all literals of a clause but one are false, that one must hold."""
    result = Propagation({name: fact.range for name, fact in facts.packages.items()})
    pending = [clause for rule in rules for clause in clauses(rule)]
    moved = True
    while moved:
        moved = False
        for clause in pending:
            values = [literal.holds(facts, result.domains) for literal in clause.literals]
            if True in values:
                continue
            open_ones = [literal for literal, value in zip(clause.literals, values, strict=True) if value is None]
            if not open_ones:
                result.contradiction = clause
                return result
            if len(open_ones) == 1 and _narrow(result, open_ones[0], facts):
                moved = True
    return result


def _narrow(result: Propagation, literal: Literal, facts: Facts) -> bool:
    allowed = literal.range
    if allowed is None or literal.name in facts.names or literal.name in VERSIONED:
        return False
    known = result.domains.get(literal.name)
    result.domains[literal.name] = allowed if known is None else known.intersection(allowed)
    result.forced.append(literal)
    return True


def _conflicts(rules: Sequence[Rule], facts: Facts) -> tuple[Conflict, ...]:
    """Disjoint smallest conflicts: rules that refuse alone, then rules that refuse together, binding ones first."""
    found = [_conflict([rule], facts) for rule in rules if propagate([rule], facts).contradiction]
    blamed = {rule.id for conflict in found for rule in conflict.rules}
    for weakest_too in (False, True):
        rest = [rule for rule in rules if rule.id not in blamed and (rule.binding or weakest_too)]
        while propagate(rest, facts).contradiction:
            smallest = _smallest(rest, facts)
            found.append(_conflict(smallest, facts))
            blamed |= {rule.id for rule in smallest}
            rest = [rule for rule in rest if rule.id not in blamed]
    return tuple(found)


def _smallest(rules: Sequence[Rule], facts: Facts) -> list[Rule]:
    """Leave out every rule that the contradiction does not need."""
    needed = list(rules)
    for rule in rules:
        without = [other for other in needed if other is not rule]
        if propagate(without, facts).contradiction:
            needed = without
    return needed


def _conflict(rules: Sequence[Rule], facts: Facts) -> Conflict:
    known = {name: fact.text for name, fact in {**facts.packages, **facts.versions}.items()} | dict(facts.names)
    names = frozenset[str]().union(*(rule.names for rule in rules))
    return Conflict(tuple(rules), {name: known[name] for name in sorted(names & set(known))})


def _obeyed(rule: Rule, facts: Facts) -> bool:
    domains = {name: fact.range for name, fact in facts.packages.items()}
    return all(any(literal.holds(facts, domains) is True for literal in clause.literals) for clause in clauses(rule))
