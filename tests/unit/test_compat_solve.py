"""The solver against trying everything."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.compat.solve import Clause, ClauseOrigin, Contradiction, GaveUpError, smallest, solve

SIZES = {"a": 2, "b": 3, "c": 3, "d": 4}
DOMAINS = {name: (1 << size) - 1 for name, size in SIZES.items()}


@st.composite
def _clauses(draw: st.DrawFn) -> list[Clause]:
    made = []
    for number in range(draw(st.integers(1, 14))):
        names = draw(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=3, unique=True))
        literals = tuple((name, draw(st.integers(0, DOMAINS[name]))) for name in names)
        made.append(Clause(ClauseOrigin("rule", f"c{number % 9}"), literals))  # some origins say several things
    return made


def _models(clauses: list[Clause]) -> list[dict[str, int]]:
    every = itertools.product(*([1 << at for at in range(size)] for size in SIZES.values()))
    chosen = [dict(zip(SIZES, values, strict=True)) for values in every]
    return [each for each in chosen if all(any(each[n] & mask for n, mask in clause.literals) for clause in clauses)]


@given(_clauses())
def test_an_answer_is_a_solution_or_there_is_none(clauses: list[Clause]) -> None:
    answer = solve(DOMAINS, clauses)
    models = _models(clauses)
    if isinstance(answer, Contradiction):
        assert not models
        assert not answer.decisions
    else:
        assert any(all(answer[name] == model[name] for name in answer) for model in models)


@given(_clauses())
def test_blamed_origins_contradict_each_other_and_none_can_be_left_out(clauses: list[Clause]) -> None:
    answer = solve(DOMAINS, clauses)
    if not isinstance(answer, Contradiction):
        return
    assert not _models([clause for clause in clauses if clause.origin in answer.origins])
    needed = smallest(DOMAINS, clauses, answer.origins)
    assert not _models([clause for clause in clauses if clause.origin in needed])
    for origin in needed:
        assert _models([clause for clause in clauses if clause.origin in needed - {origin}])


def test_what_is_too_entangled_is_given_up() -> None:
    """Eight pigeons in seven holes: no resolution of it is short."""
    holes = range(7)
    domains = {f"pigeon{number}": (1 << 7) - 1 for number in range(8)}
    pairs = itertools.combinations(domains, 2)
    clauses = [
        Clause(ClauseOrigin("rule", "one to a hole"), ((one, ~(1 << hole) & 127), (two, ~(1 << hole) & 127)))
        for one, two in pairs
        for hole in holes
    ]
    with pytest.raises(GaveUpError):
        solve(domains, clauses)
