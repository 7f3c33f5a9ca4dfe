"""Rules as clauses, and the solver that decides whether they can hold together.

A clause is a set of literals of which at least one must hold.

`when A and B then C and D` is (not A or not B or C) and (not A or not B or D); `when A conflict C and D` is (not A or
not C or not D); each gets the literals of `unless` too. A literal about a package also holds where the package is not
installed, unless it is a requirement's, or of `unless`, or `then` names the package without a version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal as Choice
from typing import NamedTuple

from packaging.ranges import VersionRange

from imagegen.compat.facts import versions_in
from imagegen.compat.rule import ENV, NAMED, NO_CUDA, Rule, condition_parts
from imagegen.core.errors import MatrixError


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


# Finite-domain constraint solver: unit propagation, backjumping search, minimal unsatisfiable subset.
#
# A domain is a bitset of atoms (a mask). Propagation (if all literals of a clause but one are false, that one must
# hold) does nearly all of the work; the rest is decided by search. The solver does not depend on the
# meaning of names.

_PATIENCE = 2000  # contradictions in one search; real questions need fewer than ten


class ClauseOrigin(NamedTuple):
    """The source of a clause. Origins sort by kind, then by name."""

    kind: Choice[
        "fact",  # a fact about `name`
        "given",  # a premise, or the CUDA versions that torch is built for: not an assumption
        "goal",  # a package that must be installed
        "known",  # the assumption that all releases of the package `name` are known
        "label",  # a label that stays with another version of its package
        "present",  # a changed package that stays installed
        "rule",  # the rule with the id `name`
        "stated",  # a statement of releases, as Statement.origin
        "wheels",  # a statement about the available wheels: a build from sources could help
    ]
    name: str = ""


@dataclass(frozen=True, eq=False)
class Clause:
    """A disjunction: at least one literal (name, mask of admitted atoms) must hold."""

    origin: ClauseOrigin
    literals: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Contradiction:
    """`origins` cannot all hold. `decisions` are the search decisions that it depends on, none at the end."""

    origins: frozenset[ClauseOrigin]
    decisions: frozenset[int] = frozenset()


class GaveUpError(MatrixError):
    """The question is harder than any that users ask."""

    code = "matrix-too-complex"

    def __init__(self) -> None:
        super().__init__(
            "the solver exceeded its step limit",
            why=f"a search met {_PATIENCE} contradictions without an answer",
            fix="simplify the rules about these packages",
        )


@dataclass
class _Step:
    """One narrowing with the removed atoms and the clause that forced it, None for a decision of the search."""

    name: str
    removed: int
    clause: Clause | None


@dataclass
class State:
    """The remaining domains, and the steps that led to them."""

    domains: dict[str, int]
    watch: Mapping[str, Sequence[Clause]]
    steps: list[_Step] = field(default_factory=list)
    conflicts: int = 0

    @classmethod
    def of(cls, domains: Mapping[str, int], clauses: Iterable[Clause]) -> State:
        watch: dict[str, list[Clause]] = {}
        for clause in clauses:
            for name, _ in clause.literals:
                watch.setdefault(name, []).append(clause)
        return cls(dict(domains), watch)

    def propagate(self, pending: Iterable[Clause]) -> Clause | None:
        """Narrow until nothing moves. Returns a clause that cannot hold any more, or None."""
        narrowed: deque[str] = deque()
        waiting: set[str] = set()
        domains = self.domains
        while True:
            for clause in pending:
                last: tuple[str, int] | None = None
                for name, mask in clause.literals:
                    domain = domains[name]
                    if not domain & mask:
                        continue
                    if last is not None or not domain & ~mask:
                        break
                    last = (name, mask)
                else:
                    if last is None:
                        return clause
                    self._narrow(*last, clause)
                    if last[0] not in waiting:
                        waiting.add(last[0])
                        narrowed.append(last[0])
            if not narrowed:
                return None
            name = narrowed.popleft()
            waiting.discard(name)
            pending = self.watch.get(name, ())

    def decide(self, name: str, mask: int) -> Clause | None:
        self._narrow(name, mask, None)
        return self.propagate(self.watch.get(name, ()))

    def _narrow(self, name: str, mask: int, clause: Clause | None) -> None:
        domain = self.domains[name]
        self.steps.append(_Step(name, domain & ~mask, clause))
        self.domains[name] = domain & mask

    def undo(self, length: int) -> None:
        while len(self.steps) > length:
            step = self.steps.pop()
            self.domains[step.name] |= step.removed

    def explain(self, literals: Iterable[tuple[str, int]], origin: ClauseOrigin | None = None) -> Contradiction:
        """Return the origins of clauses and the positions of decisions that made all of the literals false."""
        positions: dict[str, list[int]] = {}
        for position, step in enumerate(self.steps):
            positions.setdefault(step.name, []).append(position)
        origins = {origin} if origin is not None else set()
        decisions: set[int] = set()
        seen: set[int] = set()
        pending = [(name, mask, len(self.steps)) for name, mask in literals]
        while pending:
            name, mask, before = pending.pop()
            for position in positions.get(name, ()):
                step = self.steps[position]
                if position >= before or position in seen or not step.removed & mask:
                    continue
                seen.add(position)
                if step.clause is None:
                    decisions.add(position)
                    continue
                origins.add(step.clause.origin)
                pending += [(other, needed, position) for other, needed in step.clause.literals if other != name]
        return Contradiction(frozenset(origins), frozenset(decisions))


def solve(domains: Mapping[str, int], clauses: Sequence[Clause]) -> dict[str, int] | Contradiction:
    """Return one atom for every name in the clauses such that all of them hold, or a contradiction.

    Raises GaveUpError.
    """
    constrained = {name for clause in clauses for name, _ in clause.literals}
    state = State.of({name: domain for name, domain in domains.items() if name in constrained}, clauses)
    if broken := state.propagate(clauses):
        return state.explain(broken.literals, broken.origin)
    return search(state) or state.domains


def search(state: State) -> Contradiction | None:
    """Decide every name; `state` holds the solution when nothing is returned. Raises GaveUpError."""
    return _search(state, tuple(state.domains), 0)


def _search(state: State, names: Sequence[str], position: int) -> Contradiction | None:
    """Decide the names from that position on."""
    while position < len(names) and not state.domains[names[position]] & (state.domains[names[position]] - 1):
        position += 1
    if position == len(names):
        return None
    name, start = names[position], len(state.steps)
    untried = domain = state.domains[name]
    origins: set[ClauseOrigin] = set()
    decisions: set[int] = set()
    while untried:
        choice = untried & -untried
        untried &= ~choice
        broken = state.decide(name, choice)
        failed = state.explain(broken.literals, broken.origin) if broken else _search(state, names, position + 1)
        if failed is None:
            return None
        state.undo(start)
        state.conflicts += 1
        if state.conflicts > _PATIENCE:
            raise GaveUpError
        if start not in failed.decisions:  # this choice had no part in it, so another one will not help
            return failed
        origins |= failed.origins
        decisions |= failed.decisions - {start}
    blamed = state.explain([(name, ~domain)])
    return Contradiction(frozenset(origins | blamed.origins), frozenset(decisions | blamed.decisions))


def smallest(
    domains: Mapping[str, int], clauses: Sequence[Clause], contradicting: frozenset[ClauseOrigin]
) -> frozenset[ClauseOrigin]:
    """Return a minimal unsatisfiable subset of the contradicting origins, the smaller one of two tries."""
    blamed_clauses = [clause for clause in clauses if clause.origin in contradicting]
    tries = [
        _shrunk(domains, blamed_clauses, order)
        for order in (sorted(contradicting), sorted(contradicting, reverse=True))
    ]
    return min(tries, key=lambda subset: (len(subset), sorted(subset)))


def _shrunk(
    domains: Mapping[str, int], clauses: Sequence[Clause], order: Sequence[ClauseOrigin]
) -> frozenset[ClauseOrigin]:
    needed = frozenset(order)
    for origin in order:
        if origin in needed:
            without = [clause for clause in clauses if clause.origin in needed and clause.origin != origin]
            answer = solve(domains, without)
            if isinstance(answer, Contradiction):
                needed = answer.origins
    return needed
