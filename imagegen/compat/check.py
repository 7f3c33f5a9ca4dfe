"""Check rules against each other, and their evidence.

Implications may form a cycle without harm, since rules have no order. A cycle that forbids its own premise is a
contradiction like any other.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from imagegen.compat.facts import Facts
from imagegen.compat.problem import Problem
from imagegen.compat.rule import Rule, is_surrounding
from imagegen.compat.solve import Clause, ClauseOrigin, Contradiction, State, smallest, solve
from imagegen.core.errors import Location, MatrixError, MatrixErrors

CONFIRMED_FOR = dt.timedelta(days=183)  # six months


_ABSENT = 0b1  # of packages, the first atom


@dataclass(frozen=True)
class RuleContradiction:
    """A contradiction: if `premise` holds, the rules together leave no `about`, and none of them does so by itself."""

    premise: str  # "torch >=2.9"
    about: str
    rules: tuple[str, ...]  # ids, sorted


def check_rules(rules: Iterable[Rule], locations: Mapping[str, Location]) -> None:
    """Raise MatrixErrors when rules contradict each other; `locations` are by rule id."""
    if errors := [_error(contradiction, locations) for contradiction in find_contradictions(rules)]:
        raise MatrixErrors(errors)


def _error(clash: RuleContradiction, locations: Mapping[str, Location]) -> MatrixError:
    first, *other_rules = clash.rules
    also = ", ".join(f"{name} ({locations[name]})" if name in locations else name for name in other_rules)
    return MatrixError(
        f"the rule {first} contradicts {also}",
        code="matrix-rules-contradict",
        where=locations.get(first),
        why=f"with {clash.premise}, together they leave no {clash.about}, and none of them does so by itself",
        fix="narrow one of them; warnings and remembered rules contradict nothing",
    )


def find_contradictions(rules: Iterable[Rule]) -> Iterator[RuleContradiction]:
    """Yield each set of contradictory rules once, with the first clause that shows it."""
    problem = Problem([rule for rule in rules if rule.binding], Facts({}, {}, {}, closed=False))
    clauses = [clause for clause in problem.clauses if clause.origin.kind == "rule"]
    state = State.of(problem.domains, clauses)
    state.propagate(clauses)
    trials = AtomTrials(state, clauses)
    seen: set[tuple[str, ...]] = set()
    for name, choices in problem.atoms.items():
        positions = [
            position for position, atom in enumerate(choices) if not atom.absent and state.domains[name] >> position & 1
        ]
        for index in trials.losing(name, positions, len(choices)):
            atom, mark = choices[index], len(state.steps)
            broken = state.decide(name, 1 << index)
            for about, goal in _lost(state, broken, name):
                blamed = _blamed(problem, clauses, (name, 1 << index), goal)
                if len(blamed) > 1 and blamed not in seen and (broken or _prescribed(problem, about, blamed)):
                    seen.add(blamed)
                    yield RuleContradiction(f"{_shown(name)} {atom}", _shown(about), blamed)
            state.undo(mark)


class AtomTrials:
    """Finds the atoms that leave a package no release, faster than `State.decide` and without an explanation."""

    def __init__(self, state: State, clauses: Iterable[Clause]) -> None:
        self._domains, self._narrowed = state.domains, {step.name for step in state.steps}
        self._clauses: dict[str, dict[int, list[Clause]]] = {}  # by a name and its atoms that satisfy them
        for clause in clauses:
            for name, mask in clause.literals:
                self._clauses.setdefault(name, {}).setdefault(mask, []).append(clause)

    def losing(self, name: str, positions: Iterable[int], count: int) -> list[int]:
        """Return which of these atoms of a name lose something; `count` is the number of all of its atoms.

        An atom that satisfies a superset of another atom's clauses loses no more than that one. So the atoms that
        satisfy the fewest clauses are tried first: `>=N` in 4,000 rules costs one trial, not one for each release.
        """
        rows = [f"{mask:0{count}b}" for mask in self._clauses.get(name, {})]
        satisfied = [int("".join(column), 2) for column in zip(*rows, strict=True)][::-1] or [0] * count
        sound: list[int] = []
        losing = []
        for position in sorted(positions, key=lambda position: satisfied[position].bit_count()):
            if all(less & ~satisfied[position] for less in sound):
                if self.loses(name, 1 << position):
                    losing.append(position)
                else:
                    sound.append(satisfied[position])
        return sorted(losing)

    def loses(self, name: str, mask: int) -> bool:
        """Return whether a package has no release left where the atoms of `name` are those in `mask`."""
        domains = {**self._domains, name: mask}
        narrowed = [name]
        for other in narrowed:  # which grows
            falsified = (clauses for mask, clauses in self._clauses.get(other, {}).items() if not domains[other] & mask)
            for clause in chain.from_iterable(falsified):
                satisfiable = [literal for literal in clause.literals if domains[literal[0]] & literal[1]]
                if not satisfiable:
                    return True
                last, admitted = satisfiable[0]
                if len(satisfiable) == 1 and domains[last] & ~admitted:
                    domains[last] &= admitted
                    narrowed.append(last)
        return any(_is_lost(other, domains[other]) for other in {*narrowed, *self._narrowed} - {name})


def _lost(state: State, broken: Clause | None, premise: str) -> Iterator[tuple[str, Clause | None]]:
    """Yield (package that cannot be installed, clause that requires it); the clause is None if all is contradictory."""
    if broken:
        yield next((name for name, _ in broken.literals if name != premise), premise), None
        return
    for name in {step.name for step in state.steps}:
        if name != premise and _is_lost(name, state.domains[name]):
            yield name, Clause(ClauseOrigin("goal"), ((name, ~_ABSENT),))


def _is_lost(name: str, domain: int) -> bool:
    return domain == _ABSENT and not is_surrounding(name.partition("=")[0].rstrip("+"))


def _prescribed(problem: Problem, name: str, blamed: Iterable[str]) -> bool:
    """Return whether one of the rules prescribes versions of the package; else the package does not fit."""
    rules = [problem.rules[rule_id] for rule_id in blamed]
    return any(name.rstrip("+") in {*rule.then, *rule.conflict, *rule.same} for rule in rules)


def _blamed(
    problem: Problem, clauses: Sequence[Clause], premise: tuple[str, int], goal: Clause | None
) -> tuple[str, ...]:
    """Return the rules of a minimal contradiction between `premise` and the goal; none if one rule suffices."""
    premises = [Clause(ClauseOrigin("given"), (premise,)), *([goal] if goal else [])]
    answer = solve(problem.domains, [*premises, *clauses])
    if not isinstance(answer, Contradiction):
        return ()
    rules = [origin for origin in answer.origins if origin.kind == "rule"]
    for rule in rules:
        if isinstance(
            solve(problem.domains, [*premises, *(clause for clause in clauses if clause.origin == rule)]), Contradiction
        ):
            return ()
    needed = smallest(problem.domains, [*premises, *clauses], answer.origins)
    return tuple(sorted(origin.name for origin in needed if origin.kind == "rule"))


def _shown(name: str) -> str:
    """Return a name of atoms as users write it."""
    return f"build of {name[:-1]}" if name.endswith("+") else name.partition("=")[0]


def unconfirmed(rules: Iterable[Rule], today: dt.date) -> tuple[Rule, ...]:
    """Return the rules whose last check is more than six months old, the oldest first."""
    old = [rule for rule in rules if dt.date.fromisoformat(rule.last_checked) + CONFIRMED_FOR < today]
    return tuple(sorted(old, key=lambda rule: (rule.last_checked, rule.id)))
