"""The search for the largest set of moves, against trying all sets."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from hypothesis import example, given
from hypothesis import strategies as st

from imagegen.app.nightly.subset_search import Rejection, Unit, largest_accepted
from tests.support.golden import Golden

NAMES = "abcdef"
UNITS = [Unit(name, index, ("newest",)) for index, name in enumerate(NAMES)]


def subsets(names: str = NAMES) -> list[frozenset[str]]:
    return [frozenset(some) for size in range(len(names) + 1) for some in itertools.combinations(names, size)]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[frozenset[str]], list[tuple[str, str]]]:
    """Sets that cannot move together, and pairs of which the first cannot move without the second."""
    clashes = draw(st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=3), max_size=4))
    needs = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=5))
    return clashes, needs


def rejection(world: tuple[list[frozenset[str]], list[tuple[str, str]]], required: frozenset[str]) -> Rejection | None:
    clashes, needs = world
    for first, second in needs:
        if first in required and second not in required:
            return Rejection(f"{first} needs {second}", frozenset({first, second}))
    for clash in clashes:
        if clash <= required:
            return Rejection(f"{'+'.join(sorted(clash))} clash", clash)
    return None


@example(([frozenset("bc")], [("a", "c")]), UNITS)  # holding c for b's sake would hold a, which stands before b
@given(worlds(), st.permutations(UNITS))
def test_the_answer_is_the_best_of_all_sets_by_the_stated_order(
    world: tuple[list[frozenset[str]], list[tuple[str, str]]], units: list[Unit]
) -> None:
    def attempt(required: Mapping[str, str]) -> frozenset[str] | Rejection:
        moving = frozenset(required)
        return rejection(world, moving) or moving

    answer = largest_accepted(units, attempt)
    accepted = [each for each in subsets() if rejection(world, each) is None]
    best = max(accepted, key=lambda each: [name in each for name in NAMES])
    assert frozenset(answer.accepted) == best == (answer.value or frozenset())
    assert set(answer.rejected) == set(NAMES) - best
    assert all(each.reason for each in answer.rejected.values())


@given(st.sets(st.sampled_from(subsets())), st.permutations(UNITS), st.integers(min_value=0))
def test_whatever_is_accepted_none_is_held_that_could_move(
    accepted: set[frozenset[str]], units: list[Unit], seed: int
) -> None:
    def attempt(required: Mapping[str, str]) -> frozenset[str] | Rejection:
        moving = frozenset(required)
        chance = random.Random(f"{seed} {sorted(moving)}")
        return moving if moving in accepted else Rejection("no", frozenset(chance.sample(NAMES, chance.randrange(3))))

    answer = largest_accepted(units, attempt)
    taken = frozenset(answer.accepted)
    assert answer.value == (taken or None)
    assert not taken or taken in accepted
    assert not any(taken | {name} in accepted for name in set(NAMES) - taken)
    assert answer == largest_accepted(UNITS, attempt)


def test_it_goes_a_shorter_way_where_the_farthest_is_refused(golden: Golden) -> None:
    requested = []

    def attempt(required: Mapping[str, str]) -> str | Rejection:
        requested.append(dict(required))
        return Rejection("b 3 has no wheel", frozenset({"b"})) if required.get("b") == "" else str(required)

    units = [Unit("a", 0, ("",)), Unit("b", 1, ("", "<3", "<2")), Unit("c", 1, ("",))]
    answer = largest_accepted(units, attempt)
    assert answer.accepted == {"a": "", "b": "<3", "c": ""}
    golden.check({name: each.reason for name, each in answer.rejected.items()})
    assert len(requested) == 4  # all; all but b; b, and less far


def test_all_at_once_is_one_attempt() -> None:
    requested = []
    answer = largest_accepted(UNITS, lambda required: requested.append(required) or len(required))
    assert (answer.value, len(requested), answer.rejected) == (len(NAMES), 1, {})
    assert largest_accepted([], lambda _: 0).value is None
