"""Judge all cells of a matrix: cells of one kind share a problem, whose propagated state each of them starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from imagegen.plan.matrix.model import NO_CUDA, Cell, Rule
from imagegen.plan.rules.check import WORST_FIRST, Answer
from imagegen.plan.rules.evaluate import assumed, conflict_of
from imagegen.plan.rules.facts import Fact, Facts, extras_of, facts_of_cell, on_each
from imagegen.plan.rules.problem import FreeNames, Problem
from imagegen.plan.rules.solve import Clause, State, smallest
from imagegen.plan.rules.statements import MetadataCache


@dataclass(frozen=True)
class Standing:
    """The answer about a cell, with the reason in one line where it is not "compatible"."""

    answer: Answer
    reason: str = ""


def standings(cells: Sequence[Cell], rules: Iterable[Rule], library: MetadataCache) -> dict[str, Standing]:
    """Return the answer about each of the cells, by id."""
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
