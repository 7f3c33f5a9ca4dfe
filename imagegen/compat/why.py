"""Explain a combination by rules and metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from imagegen.compat.evaluate import (
    assumptions,
    conflict_of_core,
    conflict_of_rules,
    known_span,
    minimal_core,
    rules_core,
)
from imagegen.compat.facts import Facts, on_each_gpu
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.model_types import model_type_summary
from imagegen.compat.overrides import add_overrides
from imagegen.compat.problem import FreeNames, Problem
from imagegen.compat.question import Question, missing_extras
from imagegen.compat.rule import Rule
from imagegen.compat.solve import Clause, ClauseOrigin, GaveUpError, State, smallest
from imagegen.compat.sources import rules_about
from imagegen.compat.statements import MetadataCache
from imagegen.compat.verdict import WORST_FIRST, Answer, AnswerKind, Conflict, kind_of
from imagegen.core.deferred import dataclass

_AT_MOST = 5  # conflicts that are reported for one combination
_TRIES = 12  # conflicts that are searched for one combination


@dataclass(frozen=True)
class Explanation:
    """The answer. `conflicts` include warnings; `unknown` are sentences about requested names that are not known here.

    `rest` is the answer about the known names; None if all names are unknown. `unread` are packages of which another
    release than the known ones would do.
    """

    answer: Answer
    conflicts: tuple[Conflict, ...] = ()
    unknown: tuple[str, ...] = ()
    rest: Answer | None = None
    unread: frozenset[str] = frozenset()

    @property
    def kind(self) -> AnswerKind | None:
        """Return the kind of the whole answer; None if nothing speaks against the combination."""
        return kind_of(self.answer, self.conflicts)

    @property
    def overridden_by(self) -> tuple[str, ...]:
        """Return the projects that override all that pip refuses; none if something else fails."""
        errors = [conflict for conflict in self.conflicts if conflict.severity == "error"]
        if self.kind != "pip-refuses" or not all(error.overridden_by for error in errors):
            return ()
        return tuple(dict.fromkeys(override.project for error in errors for override in error.overridden_by))


def explain(question: Question, knowledge: Knowledge) -> Explanation:
    """Judge a question by rules and package metadata, on each of its GPUs; names that it does not mention are free.

    The answer is "incompatible" if binding rules reject it, and "unknown" if only remembered rules do, or if it names
    something that is not known here.
    """
    metadata = knowledge.metadata
    rules = sorted(rules_about(RuleSubject.of_question(question, knowledge)), key=lambda rule: rule.id)
    explanations = [_Case(rules, facts, metadata, question).explain() for facts in on_each_gpu(question.facts)]
    answer = min((explanation.answer for explanation in explanations), key=WORST_FIRST.index)
    conflicts = {
        tuple(rule.id for rule in conflict.rules): add_overrides(conflict, knowledge.overrides, question.facts)
        for explanation in explanations
        for conflict in explanation.conflicts
    }
    sentences = [*map(str, question.unknown), *(text for explanation in explanations for text in explanation.unknown)]
    model = _unknown_model_type(question, knowledge)
    unknown = dict.fromkeys([*sentences, *model])
    whole: Answer = "unknown" if (question.unknown or model) and answer == "compatible" else answer
    unread = frozenset[str]().union(*(explanation.unread for explanation in explanations))
    rest = None if question.is_unknown else answer
    return Explanation(whole, tuple(conflicts.values()), tuple(unknown), rest, unread)


def _unknown_model_type(question: Question, knowledge: Knowledge) -> list[str]:
    """Return a sentence about the model type of the question if it is not known."""
    models = knowledge.model_types() if question.model and knowledge.model_types else None
    return [model_type_summary(models, question.model)] if models and question.model not in models.first else []


class _Case:
    """A question on one GPU."""

    def __init__(self, rules: Sequence[Rule], facts: Facts, metadata: MetadataCache, question: Question) -> None:
        self.problem = Problem(rules, facts, metadata, FreeNames(extras=facts.extras))
        self.rules = tuple(self.problem.rules.values())  # these, and those that wheel scans give
        self.masks = self.problem.masks_of(facts)
        self.known_masks: dict[str, int] = {}  # as `masks`, without atoms of unknown CUDA releases
        sure_clauses = (clause for clause in self.problem.fact_clauses if clause.origin.kind != "known")
        for name, mask in (literal for sure_clause in sure_clauses for literal in sure_clause.literals):
            self.known_masks[name] = self.known_masks.get(name, mask) & mask
        self.missing = [*gaps(self.problem, facts), *_gaps_of_extras(question, metadata)]
        self.assumed: dict[frozenset[ClauseOrigin], None] = {}  # contradictions if all releases are known

    def explain(self) -> Explanation:
        """Return the conflicts of rules that can reject, else of remembered rules and wheels; and the warnings."""
        sure = [rule for rule in self.rules if rule.binding]
        try:
            conflicts, blamed = self._conflicts(sure, self._clauses(sure, wheels=False))
            is_rejected = bool(conflicts)
            if not is_rejected:
                remembered = [rule for rule in self.rules if rule.evidence == "remembered"]
                conflicts, _ = self._conflicts(remembered, self._clauses([*sure, *remembered], wheels=True))
            clauses = self._clauses(sure, wheels=True)
            conflicts += self._warnings([clause for clause in clauses if clause.origin not in blamed])
        except GaveUpError:
            return Explanation("unknown", unknown=("the solver exceeded its step limit on this combination",))
        if is_rejected:
            return Explanation("incompatible", tuple(conflicts))
        doubts = (conflict_of_core(self.problem, self.problem.facts, core) for core in self.assumed)
        conflicts += [replace(conflict, doubt=True) for conflict in doubts if conflict.rules]
        unread = frozenset(origin.name for core in self.assumed for origin in core if origin.kind == "known")
        open_ = self.missing or any(conflict.severity == "suspicion" for conflict in conflicts)
        answer: Answer = "unknown" if open_ else "compatible"
        return Explanation(answer, tuple(conflicts), tuple(self.missing), unread=unread)

    def _clauses(self, rules: Iterable[Rule], *, wheels: bool) -> list[Clause]:
        """Return the clauses of facts, statements and these rules; with `wheels`, also statements about wheels."""
        unwanted = {ClauseOrigin("rule", rule.id) for rule in self.rules} - {
            ClauseOrigin("rule", rule.id) for rule in rules
        }
        clauses = self.problem.clauses
        return [
            clause for clause in clauses if clause.origin not in unwanted and (wheels or clause.origin.kind != "wheels")
        ]

    def _conflicts(
        self, rules: Sequence[Rule], clauses: Sequence[Clause]
    ) -> tuple[list[Conflict], frozenset[ClauseOrigin]]:
        """Return the conflicts, the smallest first, and all origins that they blame, facts aside.

        A conflict is one rule that rejects the facts, or a contradiction of several clauses.
        """
        alone = [rule for rule in rules if self._rejects(rule)]
        direct = {clause.origin: self._needed(clause) for clause in clauses if self._breaks(clause)}
        shown = [conflict_of_rules([rule], self.problem.facts) for rule in alone]
        shown += [conflict_of_core(self.problem, self.problem.facts, needed) for needed in direct.values()]
        explained = {*direct, *(ClauseOrigin("rule", rule.id) for rule in alone)}
        blamed = set(explained)
        clauses = [clause for clause in clauses if clause.origin not in explained]
        for _ in range(_TRIES):
            core = self._refuted(clauses)
            refuting = {origin for origin in core if origin.kind != "fact"}
            if not refuting:
                break
            blamed |= refuting
            clauses = [clause for clause in clauses if clause.origin not in refuting]
            conflict = conflict_of_core(self.problem, self.problem.facts, core)
            stated = not any(origin.kind == "rule" for origin in refuting)
            if not (
                stated and any(set(earlier.facts) <= set(conflict.facts) for earlier in shown)
            ):  # else the same conflict in more steps
                shown.append(conflict)
        return sorted(shown, key=lambda candidate: len(candidate.rules) + len(candidate.facts))[:_AT_MOST], frozenset(
            blamed
        )

    def _rejects(self, rule: Rule) -> bool:
        """Return whether a rule and the facts contradict each other; most rules have one clause."""
        rule_clauses = self.problem.clauses_of_rule(rule)
        if len(rule_clauses) > 1:
            return bool(rules_core(self.problem, [rule]))
        return not all(
            any(self.known_masks.get(name, mask) & mask for name, mask in clause.literals) for clause in rule_clauses
        )

    def _breaks(self, clause: Clause) -> bool:
        """Return whether the facts contradict the clause of a statement without any other clause."""
        stated = clause.origin.kind in ("stated", "wheels")
        return stated and not any(self.masks.get(name, mask) & mask for name, mask in clause.literals)

    @staticmethod
    def _needed(clause: Clause) -> frozenset[ClauseOrigin]:
        return frozenset({clause.origin, *(ClauseOrigin("fact", name) for name, _ in clause.literals)})

    def _refuted(self, clauses: Sequence[Clause]) -> frozenset[ClauseOrigin]:
        """Return a minimal contradiction that does not assume that all releases are known; note one that does."""
        core = minimal_core(self.problem, clauses)
        if core and any(origin.kind == "known" for origin in core):
            first = core
            core = minimal_core(self.problem, [clause for clause in clauses if clause.origin.kind != "known"])
            if not core:
                self.missing += assumptions(self.problem, first)
                self.assumed[first] = None
        return core or frozenset()

    def _warnings(self, clauses: Sequence[Clause]) -> Iterator[Conflict]:
        """Yield the warnings that no choice within the question avoids."""
        state = State.of(self.problem.domains, clauses)
        if state.propagate(clauses):
            return
        for rule in self.rules:
            if rule.severity != "warning" or rule.evidence == "remembered":
                continue
            for clause in self.problem.clauses_of_rule(rule):
                if not any(state.domains[name] & mask for name, mask in clause.literals):
                    contradiction = state.explain(clause.literals, clause.origin)
                    core = smallest(self.problem.domains, [*clauses, clause], contradiction.origins)
                    # It warns also if the chain needs a wheel that could be built.
                    yield replace(conflict_of_core(self.problem, self.problem.facts, core), doubt=False)
                    break


def _gaps_of_extras(question: Question, metadata: MetadataCache) -> Iterator[str]:
    """Yield sentences about extras that no release in question is known to have."""
    for name, extras in sorted(missing_extras(question, metadata).items()):
        text = question.facts.packages[name].text
        about = f"no release of {name} is" if text == "any version" else f"{name} {text} is not"
        for extra in extras:
            yield f"{name}[{extra}]: {about} known to have this extra, and installers ignore an extra that is absent"


def gaps(problem: Problem, facts: Facts) -> Iterator[str]:
    """Yield sentences about versions of packages or CUDA in the facts that are not known here."""
    cuda, torch = facts.versions.get("cuda"), facts.packages.get("torch")
    own_build = torch is not None and torch.built  # for that CUDA, as on an image of NVIDIA
    if cuda and not own_build and problem.cudas and not any(version in cuda.range for version in problem.cudas):
        known_range = f"{problem.cudas[0]} to {problem.cudas[-1]}"
        yield f"cuda {cuda.text}: of no build for that CUDA anything is known here; those known are of {known_range}"
    for name, fact in facts.packages.items():
        if fact.text == "any version" or fact.built:
            continue
        releases = problem.releases.get(name)
        if releases is None and not fact.described:
            yield f"{name} {fact.text}: nothing is known here of the releases of {name}"
        elif releases and not any(version in fact.range for version in releases.versions):
            yield f"{name} {fact.text}: no such release is known here; {known_span(problem, name)}"
