"""Propose the newest versions that a cell's ranges, the rules and package metadata accept, and why none is newer.

Nothing is written, and no component is downgraded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen import lock
from imagegen.app.nightly.rejections import rejection_by_error, rejection_by_rules
from imagegen.app.nightly.releases import NewerRelease
from imagegen.app.nightly.subset_search import Rejection, Unit, largest_accepted
from imagegen.compat.rule import Rule
from imagegen.core.errors import BuildError, LockError
from imagegen.core.wheel_target import WheelTarget
from imagegen.lock.environments import CombinedFile
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.foundation import LockedBase
from imagegen.lock.model import Lock
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.model import Cell, Requirement

_TORCH = ("torch", "torchvision", "torchaudio", "triton")
_ENGINES = ("vllm", "sglang")
_REST = "what the components need"  # all packages that are not components, as one unit
_RANKS = 3  # of components: torch's family, engines, others; then the rest, and rejected packages of the rest
_STEPS = 4  # releases of a component that are tried, the newest first


@dataclass(frozen=True)
class RejectedUpdate:
    """A release that exists and is not taken."""

    name: str
    stays: str  # the version that the lock has
    newer: str  # empty: not known which
    reason: str


@dataclass(frozen=True)
class Proposal:
    """A proposed update. `after` is `before` if nothing moves, because a later cutoff makes no new image.

    `file` is the lock file of an image with several environments, which names the locks of their cells; `before` has
    the locks from the start of the update.
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
    """Makes a lock as of the time that keeps all of `previous` but the `upgraded`, within `bounds`, if possible."""

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
    """Move all packages that can move; `base` resolves the cell's current base.

    If not all together are accepted, components move one by one: torch and its family, then the engines, then the
    others by name, then their dependencies. Raises LockError and IncompatibleError if not even the locked versions can
    stay, and the errors of `base` and of indexes.
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

    Archives are signed again several times a day, and only a new signature does not justify another lock.
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
            cell.platform, cell.base.glibc, previous.interpreter.version if previous else cell.python
        )
        self.requested = {
            requirement.component.package: requirement for requirement in cell.requirements if not requirement.git
        }
        self.locked = {package.name: package.version for package in previous.packages} if previous else {}
        self.releases = {name: tuple(releases(needed, cell, self.target)) for name, needed in self.requested.items()}
        self.others: set[str] = set()  # no components, and named by a rejection
        self.made: dict[object, Lock | Rejection] = {}

    def baseline(self) -> Lock:
        """Return the locked versions as a lock, which is the old lock if it still fits the cell."""
        previous = self.previous
        if previous and self._fits(previous):
            return previous
        result = self._resolved((), self._bounds({})) if previous else self._resolved((), {})
        if isinstance(result, Rejection):
            raise LockError(
                f"{self.cell.id} cannot be locked",
                code="lock-unresolvable",
                why=result.reason,
                fix=f"`imagegen why {self.cell.id}`",
            )
        return result

    def _fits(self, previous: Lock) -> bool:
        if lock.stale(previous, self.cell) or lock.contradictions(previous, self.cell):
            return False
        facts = facts_of_lock(previous, self.cell)
        return rejection_by_rules(self.rules, facts) is None

    def run(self) -> tuple[Lock, tuple[RejectedUpdate, ...]]:
        self._find_others()
        answer = largest_accepted(self._units(), self._attempt)
        best, untaken = self._try_untaken(answer.value or self.baseline(), answer.accepted, answer.rejected)
        rejected = [*self._rejected_others(best, answer.rejected), *untaken]
        return best, tuple(sorted(rejected, key=lambda update: (rank(update.name), update.name, update.newer)))

    def _find_others(self) -> None:
        """Find the packages that are not components and must be excluded, since a rejection blames them."""
        components = self.requested.keys() | {requirement.component.package for requirement in self.cell.requirements}
        for _ in range(_STEPS):
            result = self._attempt({unit.name: unit.moves[0] for unit in self._units() if unit.name not in self.others})
            new = (
                result.names & self.locked.keys() - components - self.others if isinstance(result, Rejection) else set()
            )
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
        newer = [
            release.version for release in self._newer(name, self.locked[name]) if self._installable(name, release)
        ]
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
        remaining = self.locked.keys() - self.requested.keys() - self.others if _REST in required else set()
        return tuple(sorted((loose | remaining | required.keys()) & self.locked.keys()))

    def _resolved(self, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock | Rejection:
        key = (tuple(upgraded), frozenset(bounds.items()))
        if key not in self.made:
            self.made[key] = self._resolve(upgraded, bounds)
        return self.made[key]

    def _resolve(self, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock | Rejection:
        try:
            locked = self.resolve(self.previous, upgraded, bounds)
        except (LockError, BuildError) as error:
            return rejection_by_error(error, self.locked.keys() | self.requested.keys())
        return rejection_by_rules(self.rules, facts_of_lock(locked, self.cell)) or locked

    def _try_untaken(
        self, best: Lock, moves: Mapping[str, str], rejected_before: Mapping[str, Rejection]
    ) -> tuple[Lock, list[RejectedUpdate]]:
        """Try each newer release that was not taken. Take it if nothing else gets older; else record the reason."""
        untaken: list[RejectedUpdate] = []
        versions = {package.name: package.version for package in best.packages}
        for name in sorted(
            self.requested.keys() & versions.keys(), key=lambda component_name: (rank(component_name), component_name)
        ):
            for newer in self._reported(name, versions[name]):
                result = self._try_release(name, newer, versions, moves, rejected_before.get(name))
                if not isinstance(result, Rejection):
                    return self._try_untaken(result, moves, rejected_before)
                untaken.append(RejectedUpdate(name, versions[name], newer.version, result.reason))
        return best, untaken

    def _reported(self, name: str, version: str) -> Iterator[NewerRelease]:
        """Yield the newest release in the matrix's range, and the newest of all if that is another."""
        newer = [release for release in self._newer(name, version) if not release.today]
        within = [release for release in newer if self._installable(name, release)]
        yield from within[:1]
        if newer and newer[0] not in within[:1]:
            yield newer[0]

    def _try_release(
        self,
        name: str,
        newer: NewerRelease,
        versions: Mapping[str, str],
        moves: Mapping[str, str],
        rejected_before: Rejection | None,
    ) -> Lock | Rejection:
        requested = self.requested[name]
        if not self._in_range(name, newer.version):
            return Rejection(f"the matrix asks for {name}{requested.specifier}: {requested.because}")
        if newer.lacks:
            return Rejection(newer.lacks)
        fixed = [*self.requested, *(self.others - moves.keys())]
        bounds = {
            component_name: f"=={Version(versions[component_name]).public}"
            for component_name in fixed
            if component_name in versions
        }
        if rejected_before:  # together with others; perhaps it can move by itself
            result = self._resolved(self._upgraded(moves), bounds | {name: f"=={newer.version}"})
            return rejected_before if isinstance(result, Rejection) else result
        exactly = replace(requested, specifier=f"=={newer.version}")
        requirements = tuple(
            exactly if requirement is requested else requirement for requirement in self.cell.requirements
        )
        facts = facts_of_cell(replace(self.cell, requirements=requirements))
        if by_rules := rejection_by_rules(self.rules, facts):
            return by_rules
        loose = {
            bound: ",".join(filter(None, [f">={Version(versions[bound]).public}", moves[bound]]))
            for bound in bounds.keys() & moves.keys()
        }
        return self._resolved(self._upgraded(moves), bounds | loose | {name: f"=={newer.version}"})

    def _rejected_others(self, best: Lock, rejected: Mapping[str, Rejection]) -> Iterator[RejectedUpdate]:
        """Yield the rejected updates of packages that are not components."""
        versions = {package.name: package.version for package in best.packages}
        for name, rejection in rejected.items():
            if name == _REST:
                yield RejectedUpdate(name, "as it is", "", rejection.reason)
            elif name in self.others and name in versions:
                yield RejectedUpdate(name, versions[name], "", rejection.reason)
