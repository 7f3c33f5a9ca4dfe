"""Find the largest accepted set of updates, if not all are accepted together.

A unit is something that can be updated independently, by one version or more; whether a set is accepted is found by
trying it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Unit:
    """`moves` are the ways in which it may move, the farthest first; it can always stay."""

    name: str
    rank: int  # those of lower rank go first
    moves: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """A rejection. `names` are the components in its reason: the set might be accepted if they were updated too."""

    reason: str
    names: frozenset[str] = frozenset()


# Unit's name -> how it may move; those not named stay. The same may be asked twice.
Attempt = Callable[[Mapping[str, str]], T | Refusal]


@dataclass(frozen=True)
class SearchResult(Generic[T]):
    """`value` is what the attempt gave for `taken`; None: nothing could move. `held` has the refusal of each unit that
    could not move as far as it might: it is in `taken` where it moves at all.
    """

    value: T | None
    taken: Mapping[str, str]
    held: Mapping[str, Refusal]


def largest(units: Iterable[Unit], attempt: Attempt[T]) -> SearchResult[T]:
    """Return all units if that is accepted; else add one unit after the other, by rank and name.

    Components that a rejection names are tried together with the unit. So no rejected unit could be updated together
    with the units before it, or with the result. The order of `units` does not matter.
    """
    return _SubsetSearch(sorted(units, key=lambda unit: (unit.rank, unit.name)), attempt).run()


class _SubsetSearch(Generic[T]):
    def __init__(self, units: list[Unit], attempt: Attempt[T]) -> None:
        self.units = {unit.name: unit for unit in units}
        self.attempt = attempt
        self.value: T | None = None
        self.taken: dict[str, str] = {}
        self.held: dict[str, Refusal] = {}

    def run(self) -> SearchResult[T]:
        if not self._take_all_but_few():
            for name in self.units:
                if name not in self.taken and not self._move(name) and self._take_rest():
                    break
        while any([self._move(name) for name in self.units if name not in self.taken]):  # noqa: C419 - all of them
            pass
        return SearchResult(self.value, self.taken, self.held)

    def _take_all_but_few(self) -> bool:
        """Hold the last of those that each refusal names, as long as no earlier refusal names it too: that one would
        perhaps have been met by holding it alone. A refusal that names one that is held may come of the holding, and
        ends this as well. Whether an accepted set was found so.
        """
        order = list(self.units)
        blamed: set[str] = set()
        required = {name: unit.moves[0] for name, unit in self.units.items()}
        while required and isinstance(found := self.attempt(required), Refusal):
            names = sorted(found.names & required.keys(), key=order.index)
            if not names or names[-1] in blamed or found.names & self.held.keys():
                break
            blamed |= found.names
            self.held[names[-1]] = found
            del required[names[-1]]
        else:
            if required and not isinstance(found, Refusal):
                self._keep(required, found)
            return True
        self.held.clear()
        return False

    def _keep(self, required: Mapping[str, str], value: T) -> None:
        self.value, self.taken = value, dict(required)
        farthest = {name for name, move in required.items() if move == self.units[name].moves[0]}
        self.held = {name: refusal for name, refusal in self.held.items() if name not in farthest}

    def _take_rest(self) -> bool:
        """Return whether all updates that no rejection blames were accepted together."""
        rest = {name: unit.moves[0] for name, unit in self.units.items() if name not in {*self.held, *self.taken}}
        required = {**self.taken, **rest}
        if not rest or isinstance(found := self.attempt(required), Refusal):
            return False
        self._keep(required, found)
        return True

    def _move(self, name: str) -> bool:
        """Update one more unit as far as possible and return whether it changed; the reason for a rejection is
        recorded.
        """
        for move in self.units[name].moves:
            required = {**self.taken, name: move}
            while isinstance(found := self.attempt(required), Refusal):
                more = {each: self.units[each].moves[0] for each in found.names & self._open(required)}
                if not more:
                    break
                required |= more
            if not isinstance(found, Refusal):
                self._keep(required, found)
                return True
            self.held.setdefault(name, found)
        return False

    def _open(self, required: Mapping[str, str]) -> set[str]:
        return self.units.keys() - required.keys() - self.held.keys()
