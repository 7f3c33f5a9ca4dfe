"""Check rules against each other, and their evidence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagegen.core.errors import Location, MatrixError, MatrixErrors
from imagegen.plan.matrix.cells import Matrix
from imagegen.plan.matrix.model import Rule, is_surrounding
from imagegen.plan.rules.facts import Facts
from imagegen.plan.rules.problem import Problem
from imagegen.plan.rules.solve import Clause, Contradiction, State, smallest, solve

CONFIRMED_FOR = dt.timedelta(days=183)  # six months


# Rules against each other: binding ones that leave no way where only one thing is given.
#
# Implications may go round in a circle without harm, since rules have no order. A circle that comes back to forbid
# where it began is a contradiction like any other.

_ABSENT = 0b1  # of packages, the first atom


@dataclass(frozen=True)
class RuleContradiction:
    """A contradiction: where `given` holds, the rules together leave nothing of `about`, and none of them alone
    does.
    """

    given: str  # "torch >=2.9"
    about: str
    rules: tuple[str, ...]  # ids, sorted


def check_rules(matrix: Matrix) -> None:
    """Raise MatrixErrors when rules contradict each other, with the place of each."""
    found = list(find_contradictions(matrix.rules))
    if found:
        raise MatrixErrors([_error(clash, matrix.places) for clash in found])


def _error(clash: RuleContradiction, places: Mapping[str, Location]) -> MatrixError:
    first, *others = clash.rules
    also = ", ".join(f"{name} ({places[name]})" if name in places else name for name in others)
    return MatrixError(
        f"the rule {first} contradicts {also}",
        code="matrix-rules-contradict",
        where=places.get(first),
        why=f"with {clash.given}, together they leave no {clash.about}, and none of them does so alone",
        fix="narrow one of them; what only warns, or is only remembered, contradicts nothing",
    )


def find_contradictions(rules: Iterable[Rule]) -> Iterator[RuleContradiction]:
    """Yield each set of contradictory rules once, with the first clause that shows it."""
    problem = Problem([rule for rule in rules if rule.binding], Facts({}, {}, {}, closed=False))
    clauses = [clause for clause in problem.clauses if clause.origin.startswith("rule ")]
    state = State.of(problem.domains, clauses)
    state.propagate(clauses)
    seen: set[tuple[str, ...]] = set()
    for name, choices in problem.atoms.items():
        for place, atom in enumerate(choices):
            if atom.absent or not state.domains[name] >> place & 1:
                continue
            mark = len(state.steps)
            broken = state.decide(name, 1 << place)
            for about, goal in _lost(state, broken, name):
                blamed = _blamed(problem, clauses, (name, 1 << place), goal)
                if len(blamed) > 1 and blamed not in seen and (broken or _prescribed(problem, about, blamed)):
                    seen.add(blamed)
                    yield RuleContradiction(f"{_shown(name)} {atom}", _shown(about), blamed)
            state.undo(mark)


def _lost(state: State, broken: Clause | None, given: str) -> Iterator[tuple[str, Clause | None]]:
    """Yield (package that can no longer be installed, clause that requires it); the clause is None where everything is
    contradictory.
    """
    if broken:
        yield next((name for name, _ in broken.literals if name != given), given), None
        return
    for name in {step.name for step in state.steps}:
        if name != given and state.domains[name] == _ABSENT and not is_surrounding(name.partition("=")[0].rstrip("+")):
            yield name, Clause("goal", ((name, ~_ABSENT),))


def _prescribed(problem: Problem, name: str, blamed: Iterable[str]) -> bool:
    """Return whether one of the rules prescribes versions; if all rules only start from the package, the package does
    not fit.
    """
    rules = [problem.rules[each] for each in blamed]
    return any(name.rstrip("+") in {*rule.then, *rule.conflict, *rule.same} for rule in rules)


def _blamed(
    problem: Problem, clauses: Sequence[Clause], given: tuple[str, int], goal: Clause | None
) -> tuple[str, ...]:
    """Return the rules of a minimal contradiction between `given` and the goal; none if one rule alone suffices."""
    premises = [Clause("given", (given,)), *([goal] if goal else [])]
    answer = solve(problem.domains, [*premises, *clauses])
    if not isinstance(answer, Contradiction):
        return ()
    rules = [origin for origin in answer.origins if origin.startswith("rule ")]
    for rule in rules:
        if isinstance(
            solve(problem.domains, [*premises, *(each for each in clauses if each.origin == rule)]), Contradiction
        ):
            return ()
    needed = smallest(problem.domains, [*premises, *clauses], answer.origins)
    return tuple(sorted(origin.removeprefix("rule ") for origin in needed if origin.startswith("rule ")))


def _shown(name: str) -> str:
    """A name of atoms as users write it."""
    return f"build of {name[:-1]}" if name.endswith("+") else name.partition("=")[0]


def unconfirmed(rules: Iterable[Rule], today: dt.date) -> tuple[Rule, ...]:
    """Return the rules whose last check is more than six months old, the oldest first."""
    old = [rule for rule in rules if dt.date.fromisoformat(rule.last_checked) + CONFIRMED_FOR < today]
    return tuple(sorted(old, key=lambda rule: (rule.last_checked, rule.id)))
