"""Judge the whole matrix at once: every cell, and every choice of known versions of its main components.

A cell's combinations are the bits of one integer, and each clause is a few ANDs and ORs of such integers. Versions that
no clause distinguishes share a bit and are counted with their number, so that all known releases take part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from imagegen.plan.matrix.model import NO_CUDA, Cell, Rule, is_surrounding
from imagegen.plan.rules.check import WORST_FIRST, Answer
from imagegen.plan.rules.evaluate import assumed, conflict_of
from imagegen.plan.rules.facts import Fact, Facts, extras_of, facts_of_cell, on_each
from imagegen.plan.rules.problem import FreeNames, Problem
from imagegen.plan.rules.solve import Clause, State, smallest
from imagegen.plan.rules.statements import MetadataCache

ENGINES = ("vllm", "sglang")  # what generates; a cell has one of them, or none
MAIN = ("torch", *ENGINES, "megatron-core", "transformer-engine", "flash-attn")

Ban = tuple[tuple[str, int], ...]  # (name, mask of its atoms): not all of these at once


@dataclass(frozen=True)
class Fits:
    """The number of choices of known versions of `names` that obey all bounds; and the versions of each that occur."""

    names: tuple[str, ...]
    count: int
    among: int
    versions: Mapping[str, tuple[str, ...]]

    @property
    def engine(self) -> str | None:
        """The rollout engine, else torch; None where neither has known versions."""
        return next((name for name in (*ENGINES, "torch") if name in self.names), None)


@dataclass(frozen=True)
class Standing:
    """The answer about a cell, with the reason in one line where it is not "compatible"."""

    answer: Answer
    reason: str = ""


@dataclass(frozen=True)
class Row:
    cell: Cell
    standing: Standing
    fits: Fits


def survey(cells: Sequence[Cell], rules: Iterable[Rule], library: MetadataCache) -> tuple[Row, ...]:
    """Yield every cell with its answer, in the given order."""
    worlds = _worlds(cells, rules, library)
    rows = {cell.id: Row(cell, world.standing(cell), world.fits(cell)) for cell, world in worlds}
    return tuple(rows[cell.id] for cell in cells)


def standings(cells: Sequence[Cell], rules: Iterable[Rule], library: MetadataCache) -> dict[str, Standing]:
    """The answer about each of the cells, by id: `survey` without the count of combinations, which takes longer."""
    return {cell.id: world.standing(cell) for cell, world in _worlds(cells, rules, library)}


def _worlds(cells: Iterable[Cell], rules: Iterable[Rule], library: MetadataCache) -> Iterator[tuple[Cell, World]]:
    """Yield each cell with the world that it shares with similar cells."""
    rules = tuple(rules)
    alike: dict[object, list[Cell]] = {}
    for cell in cells:
        alike.setdefault((cell.cuda == NO_CUDA, tuple(sorted(extras_of(cell).items()))), []).append(cell)
    for some in alike.values():
        world = World(some, rules, library)
        yield from ((cell, world) for cell in some)


class World:
    """The shared part of a problem: the names of some cells without the cells' own facts.

    Either all of the cells have CUDA, or none, since rules about GPUs do not count without CUDA; and they require the
    same extras.
    """

    def __init__(self, cells: Sequence[Cell], rules: Iterable[Rule], library: MetadataCache) -> None:
        self.facts = {cell.id: facts_of_cell(cell) for cell in cells}
        named = {name: Fact.within("") for facts in self.facts.values() for name in facts.packages}
        without = {"cuda": NO_CUDA} if cells[0].cuda == NO_CUDA else {}
        scope = FreeNames(frozenset(named), _held(self.facts.values()), _candidates(cells), extras_of(cells[0]))
        self.problem = Problem(rules, Facts(named, {}, without, closed=False), library, scope)
        binding = {f"rule {rule.id}" for rule in self.problem.rules.values() if rule.binding}
        sure = [each for each in self.problem.clauses if each.origin in binding or each.origin.startswith("stated ")]
        self.doubts = [each for each in self.problem.clauses if each.origin.startswith("wheels ")]
        for rule in self.problem.rules.values():
            self.doubts += self.problem.of_rule(rule) if rule.evidence == "remembered" else []
        self.clauses = sure
        self.state = State.of(self.problem.domains, sure)
        self.state.propagate(sure)
        self._classes: dict[tuple[str, ...], _Combinations] = {}
        self._bans: list[Ban] | None = None

    def standing(self, cell: Cell) -> Standing:
        """Judge a cell by unit propagation: a conflict that it finds is certain, others may only show in the
        resolution.
        """
        facts = self.facts[cell.id]
        masks = self.problem.masks_of(facts)
        mark = len(self.state.steps)
        try:
            if broken := self.state.propagate(made := self.problem.clauses_of(masks)):
                return Standing("incompatible", self._reason(broken, made, facts))
            each = [self._on(one, made, self.problem.known_clauses(masks)) for one in on_each(cell.gpus, facts)]
            return min(each, key=lambda standing: WORST_FIRST.index(standing.answer))
        finally:
            self.state.undo(mark)

    def _on(self, facts: Facts, made: Sequence[Clause], known: Sequence[Clause]) -> Standing:
        """Judge the cell on one GPU, after its other facts were propagated."""
        mark = len(self.state.steps)
        gpu = [("gpu", self.problem.admitted("gpu", facts.versions["gpu"]))] if "gpu" in facts.versions else []
        made = [*made, *self.problem.clauses_of(dict(gpu))]
        try:
            if broken := self.state.propagate(made[-1:] if gpu else []):
                return Standing("incompatible", self._reason(broken, made, facts))
            for each in self.doubts:
                if not any(self.state.domains[name] & mask for name, mask in each.literals):
                    return Standing("unknown", self._reason(each, made, facts))
            if broken := self.state.propagate(known):
                origins = self.state.explain(broken.literals, broken.origin).origins
                return Standing("unknown", "; ".join(assumed(self.problem, origins)))
            return Standing("compatible")
        finally:
            self.state.undo(mark)

    def _reason(self, broken: Clause, made: Sequence[Clause], facts: Facts) -> str:
        origins = self.state.explain(broken.literals, broken.origin).origins
        needed = smallest(self.problem.domains, [*made, *self.clauses, broken], origins)
        return " ".join(rule.because for rule in conflict_of(self.problem, facts, needed).rules)

    def fits(self, cell: Cell) -> Fits:
        """The cell's surroundings with any known versions of its main components, on each of its GPUs."""
        known = self.problem.releases
        names = tuple(name for name in MAIN if name in known and name in self.facts[cell.id].packages)
        if names not in self._classes:
            self._classes[names] = _Combinations(names, self.problem, self._all_bans())
        every = (self.problem.masks_of(_surroundings(facts)) for facts in on_each(cell.gpus, self.facts[cell.id]))
        return self._classes[names].fits(list(every))

    def _all_bans(self) -> list[Ban]:
        """Return what clauses and chains of clauses forbid among main components and environment."""
        if self._bans is None:
            strict = [*self.clauses, *self.doubts, *self.problem.known_clauses({})]
            state = State.of(self.problem.domains, strict)
            state.propagate(strict)
            direct = (_ban(clause, self.problem.domains) for clause in strict)
            self._bans = [ban for ban in direct if all(_counts(name) for name, _ in ban)]
            self._bans += _chains(state, [name for name in MAIN if name in self.problem.releases])
        return self._bans


def _counts(name: str) -> bool:
    return name.rstrip("+") in MAIN or is_surrounding(name)


def _ban(clause: Clause, domains: Mapping[str, int]) -> Ban:
    return tuple((name, domains[name] & ~mask) for name, mask in clause.literals)


def _chains(state: State, names: Sequence[str]) -> Iterator[Ban]:
    """Pairs of versions of which one leaves nothing of what the other needs, however many packages lie between."""
    left: dict[str, dict[str, dict[int, int]]] = {}  # what is narrowed -> by which component -> to what -> its releases
    for name in names:
        domain, mark = state.domains[name], len(state.steps)
        while domain:
            atom = domain & -domain
            domain &= ~atom
            if state.decide(name, atom):
                yield ((name, atom),)
            else:
                for other in {step.name for step in state.steps[mark:]} - {name}:
                    to = left.setdefault(other, {}).setdefault(name, {})
                    to[state.domains[other]] = to.get(state.domains[other], 0) | atom
            state.undo(mark)
    for other, narrowed in left.items():
        for one, first in narrowed.items():
            if is_surrounding(other):
                yield from (((one, atoms), (other, ~domain)) for domain, atoms in first.items())
            for two, second in narrowed.items():
                if one < two:
                    yield from (
                        ((one, some), (two, others))
                        for here, some in first.items()
                        for there, others in second.items()
                        if not here & there
                    )


class _Combinations:
    """All choices of versions of some components, as bits."""

    def __init__(self, names: tuple[str, ...], problem: Problem, bans: Iterable[Ban]) -> None:
        self.names = names
        self.problem = problem
        self.bans = sorted(
            {ban for ban in bans if all(n in names or is_surrounding(n.rstrip("+")) or n.endswith("+") for n, _ in ban)}
        )
        self.classes = {name: self._classes(name) for name in names}
        sizes = [len(self.classes[name]) for name in names]
        self.stride = {name: prod(sizes[place + 1 :]) for place, name in enumerate(names)}
        self.all = (1 << prod(sizes)) - 1
        self._sets: dict[tuple[str, int], int] = {}
        self._results: dict[tuple[object, ...], Fits] = {}

    def _classes(self, name: str) -> list[int]:
        """Return masks of versions that no ban distinguishes, the oldest first."""
        speaking = [mask for ban in self.bans for other, mask in ban if other == name]
        found: dict[tuple[bool, ...], int] = {}
        for place in range(1, len(self.problem.releases[name].all) + 1):
            sign = tuple(bool(mask >> place & 1) for mask in speaking)
            found[sign] = found.get(sign, 0) | 1 << place
        return list(found.values())

    def fits(self, surroundings: Sequence[Mapping[str, int]]) -> Fits:
        """`surroundings` are masks by name, once for each GPU; a combination must do in each of them."""
        key = tuple(tuple(sorted(each.items())) for each in surroundings)
        if key not in self._results:
            good = self.all
            for each in surroundings:
                good &= ~self._broken(each)
            self._results[key] = self._counted(good)
        return self._results[key]

    def _broken(self, known: Mapping[str, int]) -> int:
        broken = 0
        for ban in self.bans:
            hit = self.all
            for name, mask in ban:
                if name in self.stride:
                    hit &= self._having(name, mask)
                elif known.get(name, -1) & ~mask:  # the surroundings may be otherwise
                    hit = 0
                if not hit:
                    break
            broken |= hit
        return broken

    def _having(self, name: str, mask: int) -> int:
        """The combinations in which the component is one of the versions in the mask."""
        if (name, mask) not in self._sets:
            stride, classes = self.stride[name], self.classes[name]
            ones = (1 << stride) - 1
            once = sum(ones << place * stride for place, each in enumerate(classes) if each & mask)
            cycle = stride * len(classes)
            repeated = ((1 << self.all.bit_length()) - 1) // ((1 << cycle) - 1)
            self._sets[name, mask] = once * repeated
        return self._sets[name, mask]

    def _counted(self, good: int) -> Fits:
        weights = [[each.bit_count() for each in self.classes[name]] for name in self.names]
        versions = {}
        for name in self.names:
            known = self.problem.releases[name].all
            fitting = sum(each for each in self.classes[name] if good & self._having(name, each))
            versions[name] = tuple(release.version for place, release in enumerate(known, 1) if fitting >> place & 1)
        return Fits(self.names, _count(good, weights, {}), prod(map(sum, weights)), versions)


def _count(good: int, weights: Sequence[Sequence[int]], memory: dict[tuple[int, int], int]) -> int:
    """Return how many combinations the bits stand for; the first component's digit is the highest."""
    if not good:
        return 0
    if not weights:
        return 1
    key = (len(weights), good)
    if key not in memory:
        stride = prod(map(len, weights[1:]))
        ones = (1 << stride) - 1
        memory[key] = sum(
            weight * _count(good >> place * stride & ones, weights[1:], memory)
            for place, weight in enumerate(weights[0])
        )
    return memory[key]


def _surroundings(facts: Facts) -> Facts:
    """Return the facts without the packages' versions; labels of builds stay."""
    labels = {name: Fact.within("", fact.local) for name, fact in facts.packages.items()}
    return Facts(labels, facts.versions, facts.names, facts.closed, facts.env)


def _held(every: Iterable[Facts]) -> dict[str, tuple[Fact, ...]]:
    """Package -> what the facts hold it to."""
    found: dict[str, dict[tuple[str, bool], Fact]] = {}
    for facts in every:
        for name, fact in facts.packages.items():
            found.setdefault(name, {})[fact.text, fact.built] = fact
    return {name: tuple(each.values()) for name, each in found.items()}


def _candidates(cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {name: [] for name in ("cuda", "python", "glibc", "base", "platform", "gpu")}
    for cell in cells:
        found["cuda"] += [cell.cuda_version] if cell.cuda_version else []
        found["python"].append(cell.python)
        found["glibc"].append(cell.base.glibc)
        found["base"].append(cell.base.name)
        found["platform"].append(cell.platform)
        found["gpu"] += [gpu.capability for gpu in cell.gpus]
    return {name: tuple(sorted(set(each))) for name, each in found.items()}
