"""Evaluate all cells of a matrix. Similar cells share one problem, and start from its propagated state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from imagegen.plan.matrix.model import NO_CUDA, Cell, Rule
from imagegen.plan.rules.evaluate import assumptions, conflict_of_core
from imagegen.plan.rules.facts import Fact, Facts, extras_of, facts_of_cell, on_each, overridden_in, rules_in_context
from imagegen.plan.rules.problem import FreeNames, Problem
from imagegen.plan.rules.solve import Clause, State, smallest
from imagegen.plan.rules.statements import MetadataCache
from imagegen.plan.rules.verdict import WORST_FIRST, CellAnswer


def cell_answers(cells: Sequence[Cell], rules: Iterable[Rule], library: MetadataCache) -> dict[str, CellAnswer]:
    """Return the answer for each cell, by cell id."""
    return {cell.id: problem.answer(cell) for cell, problem in _grouped(cells, rules, library)}


def _grouped(
    cells: Iterable[Cell], rules: Iterable[Rule], library: MetadataCache
) -> Iterator[tuple[Cell, SharedProblem]]:
    """Yield each cell with the problem that it shares with similar cells."""
    rules = tuple(rules)
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        key = cell.cuda == NO_CUDA, tuple(sorted(extras_of(cell).items())), tuple(cell.accepts), cell.overrides
        groups.setdefault(key, []).append(cell)
    for members in groups.values():
        problem = SharedProblem(members, rules, library)
        yield from ((cell, problem) for cell in members)


class SharedProblem:
    """The shared part of the problems of several cells: the names in all of them, without the cells' own facts.

    Either all of the cells have CUDA, or none, since rules about GPUs do not count without CUDA; and they require the
    same extras, accept the same rules and have the same overrides.
    """

    def __init__(self, cells: Sequence[Cell], rules: Iterable[Rule], library: MetadataCache) -> None:
        self.facts = {cell.id: facts_of_cell(cell) for cell in cells}
        named = {name: Fact.within("") for facts in self.facts.values() for name in facts.packages}
        without = {"cuda": NO_CUDA} if cells[0].cuda == NO_CUDA else {}
        scope = FreeNames(frozenset(named), _required(self.facts.values()), _candidates(cells), extras_of(cells[0]))
        facts = Facts(named, {}, without, closed=False, overridden=overridden_in(cells[0]))
        self.problem = Problem(rules_in_context(rules, facts, cells[0].accepts), facts, library, scope)
        binding = {f"rule {rule.id}" for rule in self.problem.rules.values() if rule.binding}
        sure = [each for each in self.problem.clauses if each.origin in binding or each.origin.startswith("stated ")]
        self.doubts = [each for each in self.problem.clauses if each.origin.startswith("wheels ")]
        for rule in self.problem.rules.values():
            self.doubts += self.problem.of_rule(rule) if rule.evidence == "remembered" else []
        self.clauses = sure
        self.state = State.of(self.problem.domains, sure)
        self.state.propagate(sure)

    def answer(self, cell: Cell) -> CellAnswer:
        """Evaluate a cell by unit propagation. A conflict is certain; resolution may find others."""
        facts = self.facts[cell.id]
        masks = self.problem.masks_of(facts)
        mark = len(self.state.steps)
        try:
            if broken := self.state.propagate(clauses := self.problem.clauses_of(masks)):
                return CellAnswer("incompatible", self._reason(broken, clauses, facts))
            each = [self._on(one, clauses, self.problem.known_clauses(masks)) for one in on_each(cell.gpus, facts)]
            return min(each, key=lambda found: WORST_FIRST.index(found.answer))
        finally:
            self.state.undo(mark)

    def _on(self, facts: Facts, clauses: Sequence[Clause], known: Sequence[Clause]) -> CellAnswer:
        """Evaluate the cell on one GPU, after its other facts were propagated."""
        mark = len(self.state.steps)
        gpu = [("gpu", self.problem.admitted("gpu", facts.versions["gpu"]))] if "gpu" in facts.versions else []
        clauses = [*clauses, *self.problem.clauses_of(dict(gpu))]
        try:
            if broken := self.state.propagate(clauses[-1:] if gpu else []):
                return CellAnswer("incompatible", self._reason(broken, clauses, facts))
            for each in self.doubts:
                if not any(self.state.domains[name] & mask for name, mask in each.literals):
                    return CellAnswer("unknown", self._reason(each, clauses, facts))
            if broken := self.state.propagate(known):
                origins = self.state.explain(broken.literals, broken.origin).origins
                return CellAnswer("unknown", "; ".join(assumptions(self.problem, origins)))
            return CellAnswer("compatible")
        finally:
            self.state.undo(mark)

    def _reason(self, broken: Clause, clauses: Sequence[Clause], facts: Facts) -> str:
        origins = self.state.explain(broken.literals, broken.origin).origins
        needed = smallest(self.problem.domains, [*clauses, *self.clauses, broken], origins)
        return " ".join(rule.because for rule in conflict_of_core(self.problem, facts, needed).rules)


def _required(every: Iterable[Facts]) -> dict[str, tuple[Fact, ...]]:
    """Return the distinct facts about each package."""
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
