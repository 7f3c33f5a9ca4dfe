"""Propose the newest versions that a cell's ranges, the rules and package metadata accept, and why none is newer.

Nothing is written, and no component is downgraded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagegen.app.nightly.search import NewerRelease, Rejection, Unit, largest_accepted
from imagegen.core.errors import BuildError, ErrorGroup, ImagegenError, LockError
from imagegen.core.text import cut
from imagegen.plan import lock
from imagegen.plan.lock.foundation import LockedBase
from imagegen.plan.lock.indexes import WheelTarget
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell, Requirement, Rule
from imagegen.plan.rules import Facts, evaluate_cell, facts_of_cell, facts_of_lock

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
    """`after` is `before` where nothing moves: an as-of time alone is no reason for another image."""

    cell: Cell
    as_of: str
    before: Lock | None
    after: Lock
    rejected: tuple[RejectedUpdate, ...] = ()

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
        self.requested = {each.component.package: each for each in cell.requirements if not each.git}
        self.locked = {each.name: each.version for each in previous.packages} if previous else {}
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
        components = self.requested.keys() | {each.component.package for each in self.cell.requirements}
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
        return [each for each in self.releases[name] if Version(each.version) > Version(Version(version).public)]

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
        versions = {each.name: each.version for each in best.packages}
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
        requirements = tuple(exactly if each is requested else each for each in self.cell.requirements)
        facts = facts_of_cell(replace(self.cell, requirements=requirements))
        if by_rules := rejection_by_rules(self.rules, self.cell, facts):
            return by_rules
        loose = {
            each: ",".join(filter(None, [f">={Version(versions[each]).public}", taken[each]]))
            for each in bounds.keys() & taken.keys()
        }
        return self._resolved(self._upgraded(taken), bounds | loose | {name: f"=={newer.version}"})

    def _rejected_others(self, best: Lock, rejected: Mapping[str, Rejection]) -> Iterator[RejectedUpdate]:
        """Yield the rejected updates of packages that are not components."""
        versions = {each.name: each.version for each in best.packages}
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
    errors = [each for each in verdict.conflicts if each.severity == "error"]
    said = [f"{rule.because} [{rule.id}; {rule.source}, {rule.date}]" for each in errors for rule in each.rules]
    facts_known = ", ".join(f"{name} {text}" for each in errors for name, text in sorted(each.facts.items()))
    names = frozenset(name for each in errors for name in each.facts)
    return Rejection(f"{facts_known}: {' '.join(dict.fromkeys(said))}", names)


def rejection_by_error(error: ImagegenError, known: Collection[str]) -> Rejection:
    """Return the rejection that an error stands for; it blames those of the `known` packages that the error names."""
    parts = error.errors if isinstance(error, ErrorGroup) else [error]
    names = frozenset(canonicalize_name(found) for found in _NAMED.findall(str(error)))
    return Rejection("; ".join(_line(part) for part in parts), names & set(known))


def _line(error: ImagegenError) -> str:
    return cut(": ".join(filter(None, [error.what, " ".join((error.why or "").split())])), _LONGEST)
