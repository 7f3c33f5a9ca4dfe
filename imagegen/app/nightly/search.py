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
    """A set of packages that is updated together. `moves` are its version bounds to try, the newest first."""

    name: str
    rank: int  # units of lower rank are tried first
    moves: tuple[str, ...]


@dataclass(frozen=True)
class Rejection:
    """A rejection. `names` are the components in its reason: the set might be accepted if they were updated too."""

    reason: str
    names: frozenset[str] = frozenset()


# Unit's name -> one of its moves; other units keep their versions. An attempt may be repeated.
Attempt = Callable[[Mapping[str, str]], T | Rejection]


@dataclass(frozen=True)
class SearchResult(Generic[T]):
    """The result of a search. `value` is the attempt's result for `taken`; None if no unit could be updated.

    `rejected` maps each unit that could not be updated to its newest version to the reason. A unit that was updated to
    an older one is in `taken` too.
    """

    value: T | None
    taken: Mapping[str, str]
    rejected: Mapping[str, Rejection]


def largest_accepted(units: Iterable[Unit], attempt: Attempt[T]) -> SearchResult[T]:
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
        self.rejected: dict[str, Rejection] = {}

    def run(self) -> SearchResult[T]:
        if not self._take_all_but_blamed():
            for name in self.units:
                if name not in self.taken and not self._move(name) and self._take_rest():
                    break
        while any([self._move(name) for name in self.units if name not in self.taken]):  # noqa: C419 - all of them
            pass
        return SearchResult(self.value, self.taken, self.rejected)

    def _take_all_but_blamed(self) -> bool:
        """Try all units; leave out the last unit that each rejection names. Return whether a set was accepted.

        Give up where a rejection names no unit, a unit that an earlier rejection named (leaving out that one alone
        might have met the earlier rejection), or a unit that is left out already (the omission may be the reason).
        """
        order = list(self.units)
        blamed: set[str] = set()
        required = {name: unit.moves[0] for name, unit in self.units.items()}
        while required and isinstance(found := self.attempt(required), Rejection):
            names = sorted(found.names & required.keys(), key=order.index)
            if not names or names[-1] in blamed or found.names & self.rejected.keys():
                break
            blamed |= found.names
            self.rejected[names[-1]] = found
            del required[names[-1]]
        else:
            if required and not isinstance(found, Rejection):
                self._keep(required, found)
            return True
        self.rejected.clear()
        return False

    def _keep(self, required: Mapping[str, str], value: T) -> None:
        self.value, self.taken = value, dict(required)
        farthest = {name for name, move in required.items() if move == self.units[name].moves[0]}
        self.rejected = {name: rejection for name, rejection in self.rejected.items() if name not in farthest}

    def _take_rest(self) -> bool:
        """Return whether all updates that no rejection blames were accepted together."""
        rest = {name: unit.moves[0] for name, unit in self.units.items() if name not in {*self.rejected, *self.taken}}
        required = {**self.taken, **rest}
        if not rest or isinstance(found := self.attempt(required), Rejection):
            return False
        self._keep(required, found)
        return True

    def _move(self, name: str) -> bool:
        """Update one more unit as far as possible and return whether it changed; the reason for a rejection is
        recorded.
        """
        for move in self.units[name].moves:
            required = {**self.taken, name: move}
            while isinstance(found := self.attempt(required), Rejection):
                more = {each: self.units[each].moves[0] for each in found.names & self._open(required)}
                if not more:
                    break
                required |= more
            if not isinstance(found, Rejection):
                self._keep(required, found)
                return True
            self.rejected.setdefault(name, found)
        return False

    def _open(self, required: Mapping[str, str]) -> set[str]:
        return self.units.keys() - required.keys() - self.rejected.keys()
