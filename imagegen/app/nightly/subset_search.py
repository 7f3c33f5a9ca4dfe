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
    """A rejection. `names` are the components in its reason, whose update might make the set acceptable."""

    reason: str
    names: frozenset[str] = frozenset()


# Unit's name -> one of its moves; other units keep their versions. An attempt may be repeated.
Attempt = Callable[[Mapping[str, str]], T | Rejection]


@dataclass(frozen=True)
class SearchResult(Generic[T]):
    """The result of a search. `value` is the attempt's result for `accepted`; None if no unit could be updated.

    `rejected` maps each unit that could not be updated to its newest version to the reason. A unit that was updated to
    an older one is in `accepted` too.
    """

    value: T | None
    accepted: Mapping[str, str]
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
        self.accepted: dict[str, str] = {}
        self.rejected: dict[str, Rejection] = {}

    def run(self) -> SearchResult[T]:
        if not self._take_all_but_blamed():
            for name in self.units:
                if name not in self.accepted and not self._move(name) and self._take_rest():
                    break
        while any([self._move(name) for name in self.units if name not in self.accepted]):  # noqa: C419 - all of them
            pass
        return SearchResult(self.value, self.accepted, self.rejected)

    def _take_all_but_blamed(self) -> bool:
        """Try all units; leave out the last unit that each rejection names. Return whether a set was accepted.

        Give up where a rejection names no unit, a unit that an earlier rejection named (leaving out only that unit
        might have met the earlier rejection), or a unit that is left out already (the omission may be the reason).
        """
        order = list(self.units)
        blamed: set[str] = set()
        required = {name: unit.moves[0] for name, unit in self.units.items()}
        while required and isinstance(result := self.attempt(required), Rejection):
            names = sorted(result.names & required.keys(), key=order.index)
            if not names or names[-1] in blamed or result.names & self.rejected.keys():
                break
            blamed |= result.names
            self.rejected[names[-1]] = result
            del required[names[-1]]
        else:
            if required and not isinstance(result, Rejection):
                self._keep(required, result)
            return True
        self.rejected.clear()
        return False

    def _keep(self, required: Mapping[str, str], value: T) -> None:
        self.value, self.accepted = value, dict(required)
        farthest = {name for name, move in required.items() if move == self.units[name].moves[0]}
        self.rejected = {name: rejection for name, rejection in self.rejected.items() if name not in farthest}

    def _take_rest(self) -> bool:
        """Return whether all updates that no rejection blames were accepted together."""
        remaining = {
            name: unit.moves[0] for name, unit in self.units.items() if name not in {*self.rejected, *self.accepted}
        }
        required = {**self.accepted, **remaining}
        if not remaining or isinstance(result := self.attempt(required), Rejection):
            return False
        self._keep(required, result)
        return True

    def _move(self, name: str) -> bool:
        """Update one more unit as far as possible and return whether it changed; record why it is rejected."""
        for move in self.units[name].moves:
            required = {**self.accepted, name: move}
            while isinstance(result := self.attempt(required), Rejection):
                blamed_units = {
                    unit_name: self.units[unit_name].moves[0] for unit_name in result.names & self._open(required)
                }
                if not blamed_units:
                    break
                required |= blamed_units
            if not isinstance(result, Rejection):
                self._keep(required, result)
                return True
            self.rejected.setdefault(name, result)
        return False

    def _open(self, required: Mapping[str, str]) -> set[str]:
        return self.units.keys() - required.keys() - self.rejected.keys()
