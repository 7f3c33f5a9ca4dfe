"""Propose the newest versions that a cell's ranges, the rules and package metadata accept, and why none is newer.

Nothing is written, and no component is downgraded.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from imagegen.core.config import Settings
from imagegen.core.errors import BuildError, ErrorGroup, FetchError, ImagegenError, LockError
from imagegen.core.net import Client
from imagegen.core.progress import Progress
from imagegen.core.text import cut
from imagegen.plan import lock
from imagegen.plan.lock import indexes
from imagegen.plan.lock.environments import CombinedFile
from imagegen.plan.lock.foundation import LockedBase
from imagegen.plan.lock.indexes import IndexLink, WheelTarget
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell, Requirement, Rule
from imagegen.plan.rules import Facts, evaluate_cell, facts_of_cell, facts_of_lock
from imagegen.wheels.resolve.candidates import WheelSelector

# Releases that are newer than the locked ones, and the largest set of updates that is accepted.
#
# A unit is something that can be updated independently, by one version or more; whether a set is accepted is found by
# trying it.

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

    def __init__(self, as_of: str, settings: Settings, selector: WheelSelector, progress: Progress) -> None:
        self._until = dt.date.fromisoformat(as_of[:10])
        self._settings = settings
        self._selector = selector
        self._progress = progress
        self._links: dict[tuple[str, str], tuple[IndexLink, ...]] = {}
        self._fetched: set[str] = set()  # cells of which all is known

    def _fetch(self, cell: Cell) -> None:
        """Ask for all of the cell's components at once."""
        self._fetched.add(cell.id)
        requested = [
            requirement
            for requirement in cell.requirements
            if not requirement.git and requirement.component.package not in cell.recipes
        ]
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
            known = {*recipe.releases, *(() if requested.from_source else self._selector.versions(package))}
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
        return tuple(link for link in links if _is_of(link.filename, package))


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


# Propose the newest versions that a cell's ranges, the rules and package metadata accept, and why none is newer.

_TORCH = ("torch", "torchvision", "torchaudio", "triton")
_ENGINES = ("vllm", "sglang")
_REST = "what the components need"  # all packages that are no components, as one unit
_RANKS = 3  # of components: torch's family, engines, others; then the rest, and what of the rest is rejected
_STEPS = 4  # releases of a component that are tried, the newest first


@dataclass(frozen=True)
class RejectedUpdate:
    """A release that there is, and that is not taken."""

    name: str
    stays: str  # the version that the lock has
    newer: str  # empty: not known which
    reason: str


@dataclass(frozen=True)
class Proposal:
    """A proposed update. `after` is `before` where nothing moves: a later as-of time alone makes no new image.

    `file` is the lock file of an image with several environments, which names the locks of their cells; `before` has
    these as they were when the update began.
    """

    cell: Cell
    as_of: str
    before: Lock | None
    after: Lock
    rejected: tuple[RejectedUpdate, ...] = ()
    file: CombinedFile | None = None

    @property
    def changed(self) -> bool:
        return self.after is not self.before


class Resolve(Protocol):
    """Makes a lock as of the time: of `previous` all stays but the `upgraded`, within `bounds`, if it can."""

    def __call__(self, previous: Lock | None, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock: ...


Releases = Callable[[Requirement, Cell, WheelTarget], Sequence[NewerRelease]]  # newest first


def propose(
    cell: Cell,
    before: Lock | None,
    as_of: str,
    rules: Sequence[Rule],
    resolve: Resolve,
    base: Callable[[], LockedBase],
    releases: Releases,
) -> Proposal:
    """Move all that can move; `base` resolves the cell's base as it is now.

    Where not all together are accepted, components move one by one: torch and its family, then the engines, then the
    others by name, then what these need. Raises LockError and IncompatibleError where even what is locked cannot stay,
    and what `base` and an index that fails raise.
    """

    def search(previous: Lock | None) -> _CellSearch:
        return _CellSearch(cell, previous, rules, resolve, releases)

    if before is None:
        return Proposal(cell, as_of, None, search(None).baseline())
    with ThreadPoolExecutor(1, thread_name_prefix="search") as side:
        ahead = side.submit(lambda: search(before).run())  # on the base that seldom moves, while that is requested
        previous = _with_base(before, base(), cell)
    after, rejected = ahead.result() if previous is before else search(previous).run()
    return Proposal(cell, as_of, before, before if _same(before, after) else after, rejected)


def rank(package: str) -> int:
    """Return the priority of a package: 0 for torch's family, 1 for engines, 2 for others.

    Updates are listed in this order, and the lower number is updated first where not all updates fit together.
    """
    return 0 if package in _TORCH else 1 if package in _ENGINES else 2


def _with_base(before: Lock, base: LockedBase, cell: Cell) -> Lock:
    """Return the lock on today's base, or `before` itself where only the archives' signatures differ.

    Archives are signed again several times a day, and a new signature alone is no reason for another lock.
    """
    if replace(base, archives=before.base.archives) == before.base:
        return before
    return replace(before, base=base, inputs={**before.inputs, "base": cell.inputs["base"]}, record=None)


def _same(before: Lock, after: Lock) -> bool:
    base = replace(after.base, archives=before.base.archives)
    return replace(after, as_of=before.as_of, base=base, record=before.record) == before


class _CellSearch:
    def __init__(
        self, cell: Cell, previous: Lock | None, rules: Sequence[Rule], resolve: Resolve, releases: Releases
    ) -> None:
        self.cell, self.previous, self.rules, self.resolve = cell, previous, rules, resolve
        self.target = WheelTarget.of(
            cell.platform, cell.base, previous.interpreter.version if previous else cell.python
        )
        self.requested = {
            requirement.component.package: requirement for requirement in cell.requirements if not requirement.git
        }
        self.locked = {package.name: package.version for package in previous.packages} if previous else {}
        self.releases = {name: tuple(releases(each, cell, self.target)) for name, each in self.requested.items()}
        self.others: set[str] = set()  # no components, and named by a rejection
        self.made: dict[object, Lock | Rejection] = {}

    def baseline(self) -> Lock:
        """Return the locked versions as a lock: the old lock where it still fits the cell."""
        previous = self.previous
        if previous and self._fits(previous):
            return previous
        found = self._resolved((), self._bounds({})) if previous else self._resolved((), {})
        if isinstance(found, Rejection):
            raise LockError(
                f"{self.cell.id} cannot be locked",
                code="lock-unresolvable",
                why=found.reason,
                fix=f"`imagegen why {self.cell.id}`",
            )
        return found

    def _fits(self, previous: Lock) -> bool:
        if lock.stale(previous, self.cell) or lock.contradictions(previous, self.cell):
            return False
        facts = facts_of_lock(previous, self.cell.base.glibc)
        return rejection_by_rules(self.rules, self.cell, facts) is None

    def run(self) -> tuple[Lock, tuple[RejectedUpdate, ...]]:
        self._find_others()
        answer = largest_accepted(self._units(), self._attempt)
        best, untaken = self._try_untaken(answer.value or self.baseline(), answer.taken, answer.rejected)
        return best, tuple(sorted([*self._rejected_others(best, answer.rejected), *untaken], key=_sort_key))

    def _find_others(self) -> None:
        """Find the packages that are not components and must be excluded, since a rejection blames them."""
        components = self.requested.keys() | {requirement.component.package for requirement in self.cell.requirements}
        for _ in range(_STEPS):
            found = self._attempt({unit.name: unit.moves[0] for unit in self._units() if unit.name not in self.others})
            new = found.names & self.locked.keys() - components - self.others if isinstance(found, Rejection) else set()
            if not new:
                return
            self.others |= new

    def _units(self) -> list[Unit]:
        units = [Unit(name, rank(name), moves) for name in self.requested if (moves := self._moves(name))]
        return [*units, Unit(_REST, _RANKS, ("",)), *(Unit(name, _RANKS + 1, ("",)) for name in self.others)]

    def _moves(self, name: str) -> tuple[str, ...]:
        """Return upper bounds to try for a component: none (the newest release), then below each of the newest few,
        while a release above the locked one is left.
        """
        if not self._can_stay(name):
            return ()
        newer = [each.version for each in self._newer(name, self.locked[name]) if self._installable(name, each)]
        return ("", *(f"<{version}" for version in newer[: _STEPS - 1][: len(newer) - 1])) if newer else ()

    def _newer(self, name: str, version: str) -> list[NewerRelease]:
        return [
            release for release in self.releases[name] if Version(release.version) > Version(Version(version).public)
        ]

    def _in_range(self, name: str, version: str) -> bool:
        return SpecifierSet(self.requested[name].specifier).contains(Version(version).public, prereleases=True)

    def _installable(self, name: str, release: NewerRelease) -> bool:
        return release.lacks is None and self._in_range(name, release.version)

    def _can_stay(self, name: str) -> bool:
        """Return whether the component is locked in a version that the matrix still accepts."""
        return name in self.locked and self._in_range(name, self.locked[name])

    def _bounds(self, required: Mapping[str, str]) -> dict[str, str]:
        bounds = {}
        for name in filter(self._can_stay, self.requested):
            version = Version(self.locked[name]).public
            move = required.get(name)
            bounds[name] = f"=={version}" if move is None else ",".join(filter(None, [f">={version}", move]))
        pinned = {name: f"=={Version(self.locked[name]).public}" for name in self.others - required.keys()}
        return bounds | pinned

    def _attempt(self, required: Mapping[str, str]) -> Lock | Rejection:
        return self._resolved(self._upgraded(required), self._bounds(required))

    def _upgraded(self, required: Mapping[str, str]) -> tuple[str, ...]:
        loose = {name for name in self.requested if not self._can_stay(name)}
        rest = self.locked.keys() - self.requested.keys() - self.others if _REST in required else set()
        return tuple(sorted((loose | rest | required.keys()) & self.locked.keys()))

    def _resolved(self, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock | Rejection:
        key = (tuple(upgraded), frozenset(bounds.items()))
        if key not in self.made:
            self.made[key] = self._resolve(upgraded, bounds)
        return self.made[key]

    def _resolve(self, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock | Rejection:
        try:
            made = self.resolve(self.previous, upgraded, bounds)
        except (LockError, BuildError) as error:
            return rejection_by_error(error, self.locked.keys() | self.requested.keys())
        return rejection_by_rules(self.rules, self.cell, facts_of_lock(made, self.cell.base.glibc)) or made

    def _try_untaken(
        self, best: Lock, taken: Mapping[str, str], rejected_before: Mapping[str, Rejection]
    ) -> tuple[Lock, list[RejectedUpdate]]:
        """Try each newer release that was not taken: it is taken where nothing else gets older, or has its reason."""
        untaken: list[RejectedUpdate] = []
        versions = {package.name: package.version for package in best.packages}
        for name in sorted(self.requested.keys() & versions.keys(), key=lambda each: (rank(each), each)):
            for newer in self._reported(name, versions[name]):
                found = self._try_release(name, newer, versions, taken, rejected_before.get(name))
                if not isinstance(found, Rejection):
                    return self._try_untaken(found, taken, rejected_before)
                untaken.append(RejectedUpdate(name, versions[name], newer.version, found.reason))
        return best, untaken

    def _reported(self, name: str, version: str) -> Iterator[NewerRelease]:
        """The newest in the matrix's range, and the newest of all, if that is another."""
        newer = [each for each in self._newer(name, version) if not each.today]
        within = [each for each in newer if self._installable(name, each)]
        yield from within[:1]
        if newer and newer[0] not in within[:1]:
            yield newer[0]

    def _try_release(
        self,
        name: str,
        newer: NewerRelease,
        versions: Mapping[str, str],
        taken: Mapping[str, str],
        rejected_before: Rejection | None,
    ) -> Lock | Rejection:
        requested = self.requested[name]
        if not self._in_range(name, newer.version):
            return Rejection(f"the matrix asks for {name}{requested.specifier}: {requested.because}")
        if newer.lacks:
            return Rejection(newer.lacks)
        fixed = [*self.requested, *(self.others - taken.keys())]
        bounds = {each: f"=={Version(versions[each]).public}" for each in fixed if each in versions}
        if rejected_before:  # along with others: perhaps it can move alone
            found = self._resolved(self._upgraded(taken), bounds | {name: f"=={newer.version}"})
            return rejected_before if isinstance(found, Rejection) else found
        exactly = replace(requested, specifier=f"=={newer.version}")
        requirements = tuple(
            exactly if requirement is requested else requirement for requirement in self.cell.requirements
        )
        facts = facts_of_cell(replace(self.cell, requirements=requirements))
        if by_rules := rejection_by_rules(self.rules, self.cell, facts):
            return by_rules
        loose = {
            bound: ",".join(filter(None, [f">={Version(versions[bound]).public}", taken[bound]]))
            for bound in bounds.keys() & taken.keys()
        }
        return self._resolved(self._upgraded(taken), bounds | loose | {name: f"=={newer.version}"})

    def _rejected_others(self, best: Lock, rejected: Mapping[str, Rejection]) -> Iterator[RejectedUpdate]:
        """Yield the rejected updates of packages that are not components."""
        versions = {package.name: package.version for package in best.packages}
        for name, rejection in rejected.items():
            if name == _REST:
                yield RejectedUpdate(name, "as it is", "", rejection.reason)
            elif name in self.others and name in versions:
                yield RejectedUpdate(name, versions[name], "", rejection.reason)


def _sort_key(rejected: RejectedUpdate) -> tuple[int, str, str]:
    return rank(rejected.name), rejected.name, rejected.newer


# The reason for a rejected set of versions, in one line: the rule with its source, or uv's message, shortened.

_LONGEST = 600  # characters of an error in one line
# A name with a version, or with bounds: that alone is about a package, and not a word of the sentence.
_NAMED = re.compile(r"(?<![\w.-])([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]+\])?(?:[=<>!~]=?| (?=\d))")


def rejection_by_rules(rules: Iterable[Rule], cell: Cell, facts: Facts) -> Rejection | None:
    """The rejection where a rule leaves no choice, else None."""
    verdict = evaluate_cell(rules, cell, facts)
    if verdict.answer != "incompatible":
        return None
    errors = [conflict for conflict in verdict.conflicts if conflict.severity == "error"]
    said = [f"{rule.because} [{rule.id}; {rule.source}, {rule.date}]" for error in errors for rule in error.rules]
    facts_known = ", ".join(f"{name} {text}" for error in errors for name, text in sorted(error.facts.items()))
    names = frozenset(name for error in errors for name in error.facts)
    return Rejection(f"{facts_known}: {' '.join(dict.fromkeys(said))}", names)


def rejection_by_error(error: ImagegenError, known: Collection[str]) -> Rejection:
    """Return the rejection that an error stands for; it blames those of the `known` packages that the error names."""
    parts = error.errors if isinstance(error, ErrorGroup) else [error]
    names = frozenset(canonicalize_name(found) for found in _NAMED.findall(str(error)))
    return Rejection("; ".join(_line(part) for part in parts), names & set(known))


def _line(error: ImagegenError) -> str:
    return cut(": ".join(filter(None, [error.what, " ".join((error.why or "").split())])), _LONGEST)
