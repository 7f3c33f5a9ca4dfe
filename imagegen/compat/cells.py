"""Answer for many cells: those that work are found by one problem, and `explain` answers for the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from imagegen.compat.builds import open_label_rules
from imagegen.compat.facts import Fact, Facts, on_each_gpu
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.problem import FreeNames, Problem
from imagegen.compat.question import Question
from imagegen.compat.rule import BASE_LIBRARIES, NAMED, NO_CUDA, VERSIONED
from imagegen.compat.solve import ClauseOrigin, GaveUpError, State, search
from imagegen.compat.sources import rules_about
from imagegen.compat.verdict import CellAnswer, reasons_of
from imagegen.compat.why import Explanation, explain, gaps


def cell_answer(explanation: Explanation) -> CellAnswer:
    """Return the answer about a cell with its reasons in one line."""
    unknown = "" if explanation.answer == "incompatible" else " ".join(explanation.unknown)
    return CellAnswer(explanation.answer, unknown or reasons_of(explanation.answer, explanation.conflicts))


def answer_each(facts_of_cells: Mapping[str, Facts], knowledge: Knowledge) -> dict[str, CellAnswer]:
    """Return the answer for each cell by its facts before resolution, by cell id. Similar cells share a problem."""
    groups: dict[object, dict[str, Facts]] = {}
    for cell_id, facts in facts_of_cells.items():
        has_cuda = facts.names.get("cuda") != NO_CUDA
        image = facts.image if facts.overrides else ""
        key = has_cuda, tuple(sorted(facts.extras.items())), facts.accepts, facts.overrides, image
        groups.setdefault(key, {})[cell_id] = facts
    answers: dict[str, CellAnswer] = {}
    for group in groups.values():
        problem = _SharedProblem(tuple(group.values()), knowledge)
        for cell_id, facts in group.items():
            works = problem.works(facts)
            answers[cell_id] = (
                CellAnswer("compatible") if works else cell_answer(explain(Question({}, facts), knowledge))
            )
    return answers


class _SharedProblem:
    """The problem that several cells share, with the names of all of them and without the facts of each.

    All of the cells have CUDA, or none has, since rules about GPUs do not count without CUDA. They require the same
    extras, accept the same rules and have the same overrides.
    """

    def __init__(self, facts_of_cells: Sequence[Facts], knowledge: Knowledge) -> None:
        first = facts_of_cells[0]
        packages = {name: Fact.within("") for facts in facts_of_cells for name in facts.packages}
        without = {"cuda": NO_CUDA} if first.names.get("cuda") == NO_CUDA else {}
        scope = FreeNames(
            frozenset(packages), _required(facts_of_cells), _candidates(facts_of_cells), first.extras, every_extra=True
        )
        facts = Facts(
            packages,
            {},
            without,
            closed=False,
            accepts=first.accepts,
            overrides=first.overrides,
            image=first.image,
        )
        cell_rules = rules_about(RuleSubject("cell", facts, knowledge))
        label_rules = open_label_rules(facts_of_cells, knowledge.metadata.scans)
        self.problem = Problem([*cell_rules, *label_rules], facts, knowledge.metadata, scope)
        rules = (rule for rule in self.problem.rules.values() if rule.binding or rule.evidence == "remembered")
        counted = {ClauseOrigin("rule", rule.id) for rule in rules}
        kinds = ("stated", "wheels")
        clauses = [clause for clause in self.problem.clauses if clause.origin in counted or clause.origin.kind in kinds]
        self.state = State.of(self.problem.domains, clauses)
        self.works_without_facts = self.state.propagate(clauses) is None

    def works(self, facts: Facts) -> bool:
        """Return whether known releases satisfy all rules and statements, also those in doubt, on each GPU."""
        if not self.works_without_facts or any(gaps(self.problem, facts)):
            return False
        masks = self.problem.masks_of(facts)
        clauses = [*self.problem.clauses_of(masks), *self.problem.known_clauses(masks)]
        mark = len(self.state.steps)
        try:
            return self.state.propagate(clauses) is None and all(map(self._works_on, on_each_gpu(facts)))
        except GaveUpError:
            return False
        finally:
            self.state.undo(mark)

    def _works_on(self, facts: Facts) -> bool:
        """Return whether the cell, whose other facts were propagated, works on one GPU."""
        mark = len(self.state.steps)
        gpu = {"gpu": self.problem.admitted("gpu", facts.versions["gpu"])} if "gpu" in facts.versions else {}
        try:
            return self.state.propagate(self.problem.clauses_of(gpu)) is None and search(self.state) is None
        finally:
            self.state.undo(mark)


def _required(facts_of_cells: Iterable[Facts]) -> dict[str, tuple[Fact, ...]]:
    """Return the distinct facts about each package."""
    facts_by_text: dict[str, dict[tuple[str, bool], Fact]] = {}
    for facts in facts_of_cells:
        for name, fact in facts.packages.items():
            facts_by_text.setdefault(name, {})[fact.text, fact.built] = fact
    return {name: tuple(distinct.values()) for name, distinct in facts_by_text.items()}


def _candidates(facts_of_cells: Sequence[Facts]) -> dict[str, tuple[str, ...]]:
    candidates: dict[str, set[str]] = {name: set() for name in (*NAMED, *VERSIONED) if name != "driver"}
    for facts in facts_of_cells:
        for name in ("cuda", "python", *BASE_LIBRARIES):
            candidates[name] |= {facts.versions[name].text} if name in facts.versions else set()
        candidates["base"].add(facts.names["base"])
        candidates["platform"].add(facts.names["platform"])
        candidates["gpu"] |= {gpu.capability for gpu in facts.gpus}
    return {name: tuple(sorted(values)) for name, values in candidates.items()}
