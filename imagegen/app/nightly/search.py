"""Releases that are newer than the locked ones, and the largest set of updates that is accepted.

A unit is something that can be updated independently, by one version or more; whether a set is accepted is found by
trying it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.plan.lock import indexes
from imagegen.plan.lock.indexes import IndexLink, WheelTarget
from imagegen.plan.matrix.model import Cell, Requirement
from imagegen.wheels.resolve.candidates import WheelSelector

_THREADS = 8  # pages at once


@dataclass(frozen=True)
class NewerRelease:
    """A release of a component. `version` is public; `lacks` is what excludes it from the cell whatever else changes,
    or None.

    Indexes state the day of an upload: only the resolver decides whether one from `today` came before the cutoff.
    """

    version: str
    lacks: str | None = None
    today: bool = False


class ReleaseIndex:
    """The releases of components, newest first, as of a cutoff; each index is read once."""

    def __init__(self, as_of: str, settings: Settings, chooser: WheelSelector, progress: Progress) -> None:
        self._until = dt.date.fromisoformat(as_of[:10])
        self._settings = settings
        self._chooser = chooser
        self._progress = progress
        self._links: dict[tuple[str, str], tuple[IndexLink, ...]] = {}
        self._fetched: set[str] = set()  # cells of which all is known

    def _fetch(self, cell: Cell) -> None:
        """Ask for all of the cell's components at once."""
        self._fetched.add(cell.id)
        requested = [each for each in cell.requirements if not each.git and each.component.package not in cell.recipes]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda each: self._project(each.index, each.component.package), requested))

    def of(self, requested: Requirement, cell: Cell, target: WheelTarget) -> tuple[NewerRelease, ...]:
        """Return the releases of a component, newest first; a git component has none.

        An index that does not respond is logged and yields no releases; the resolution raises the error if it needs
        that index.
        """
        package = requested.component.package
        if requested.git:
            return ()
        if cell.id not in self._fetched:
            self._fetch(cell)
        if recipe := cell.recipes.get(package):
            known = {*recipe.releases, *(() if requested.from_source else self._chooser.versions(package))}
            return tuple(NewerRelease(version) for version in sorted(known, key=Version, reverse=True))
        return tuple(_releases(self._project(requested.index, package), self._until, target))

    def _project(self, alias: str, package: str) -> tuple[IndexLink, ...]:
        if (alias, package) not in self._links:
            self._links[alias, package] = self._ask(alias, package)
        return self._links[alias, package]

    def _ask(self, alias: str, package: str) -> tuple[IndexLink, ...]:
        url = indexes.url_of(alias, self._settings)
        try:
            with Client(self._settings) as client:
                links = indexes.project(client.impatient(), url, package) if url else []
        except FetchError as error:
            self._progress.say(f"whether there is a newer {package} is not known: {error.what}")
            return ()
        return tuple(each for each in links if _is_of(each.filename, package))


def _releases(links: Iterable[IndexLink], until: dt.date, target: WheelTarget) -> Iterator[NewerRelease]:
    found: dict[Version, list[IndexLink]] = {}
    for link in links:
        if not link.yanked and (link.uploaded is None or link.uploaded <= until):
            found.setdefault(_version(link.filename), []).append(link)
    for version in sorted(found, reverse=True):
        if not version.is_prerelease:
            today = min(filter(None, (link.uploaded for link in found[version])), default=None) == until
            yield NewerRelease(version.public, _lacks(found[version], target), today)


def _lacks(links: list[IndexLink], target: WheelTarget) -> str | None:
    python = next((link.python for link in links if link.python), "")
    try:
        if not SpecifierSet(python).contains(target.python):
            return f"it is for Python {python}"
    except ValueError:  # uv reads some that packaging does not
        pass
    wheels = [link.filename for link in links if link.filename.endswith(".whl")]
    if wheels and target.best((name, name) for name in wheels) is None:
        return f"it has no wheel for Python {target.python} on {target.uv_platform}"
    return None


def _is_of(filename: str, package: str) -> bool:
    try:
        name = parse_wheel_filename(filename)[0] if filename.endswith(".whl") else parse_sdist_filename(filename)[0]
    except ValueError:
        return False
    return name == package


def _version(filename: str) -> Version:
    return parse_wheel_filename(filename)[1] if filename.endswith(".whl") else parse_sdist_filename(filename)[1]


# Find the largest accepted set of updates, if not all are accepted together.
#
# A unit is something that can be updated independently, by one version or more; whether a set is accepted is found by
# trying it.

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
