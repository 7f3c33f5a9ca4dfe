"""Judge a combination or the cells of a matrix; find the minimum versions and bounds that rules imply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.compat.clauses import Literal, clauses
from imagegen.compat.facts import Facts, linked_rules, on_each_gpu, rules_in_context
from imagegen.compat.knowledge import Knowledge, RuleSubject
from imagegen.compat.problem import Problem
from imagegen.compat.rule import ENV, Rule, is_surrounding
from imagegen.compat.solve import Clause, ClauseOrigin, Contradiction, State, smallest, solve
from imagegen.compat.sources import rules_about
from imagegen.compat.verdict import WORST_FIRST, Conflict, Verdict


def rule_constraints(rules: Iterable[Rule], facts: Facts) -> tuple[str, ...]:
    """Return PEP 508 constraints, sorted, that follow from the facts by rules that can reject a build.

    A constraint binds a package only if it is installed. A bound that no specifier can express (a gap between two
    ranges) is left to the verdict on the lock.
    """
    binding = sorted((rule for rule in rules if rule.binding), key=lambda rule: rule.id)
    literals = (literal for literal in implied_literals(binding, facts) if not is_surrounding(literal.name))
    return tuple(sorted({f"{literal.name}{literal.specifier}" for literal in literals if literal.specifier}))


_BOUNDS = {">=", ">", "==", "~="}


def minimum_version(rules: Iterable[Rule], facts: Facts, name: str) -> str | None:
    """Return the highest lower bound that binding rules put on `name`, as the rule writes it; None without one.

    A rule counts if the facts decide everything else in it: then its bound on `name` must hold. The GPU with the lowest
    bound decides: below that bound, the stack works on none of the GPUs.
    """
    binding = sorted((rule for rule in linked_rules(rules, name, facts) if rule.binding), key=lambda rule: rule.id)
    bounds = [
        _highest(literal for literal in implied_literals(binding, facts_on_gpu) if literal.name == name)
        for facts_on_gpu in on_each_gpu(facts)
    ]
    lower_bounds = [bound for bound in bounds if bound is not None]
    return min(lower_bounds, key=Version) if len(lower_bounds) == len(bounds) else None


def _highest(literals: Iterable[Literal]) -> str | None:
    bounds = {
        specifier.version.removesuffix(".dev0")  # PEP 440's complement of "<590" is ">=590.dev0"
        for literal in literals
        for specifier in SpecifierSet(literal.specifier or "")
        if specifier.operator in _BOUNDS
    }
    return max(bounds, key=lambda bound: (Version(bound), bound), default=None)


def evaluate(rules: Iterable[Rule], facts: Facts) -> Verdict:
    """Evaluate the rules on the facts. The order of the rules does not matter.

    "incompatible": no choice within the facts satisfies the rules; "compatible": every choice does; else "unknown".
    """
    ordered = sorted(rules_in_context(rules, facts), key=lambda rule: rule.id)
    problem = Problem(ordered, facts)
    allowed = {name: mask for clause in problem.fact_clauses for name, mask in clause.literals}
    allowed = {name: allowed.get(name, full) for name, full in problem.domains.items()}
    # A rule that the facts satisfy cannot be part of a conflict with them.
    undecided = [rule for rule in ordered if not _satisfied(problem.clauses_of_rule(rule), allowed)]
    conflicts = tuple(_conflicts(problem, undecided))
    severities = {conflict.severity for conflict in conflicts}
    blamed = {rule.id for conflict in conflicts for rule in conflict.rules}
    if "error" in severities:
        return Verdict("incompatible", conflicts)
    if "suspicion" in severities or any(rule.binding and rule.id not in blamed for rule in undecided):
        return Verdict("unknown", conflicts)
    return Verdict("compatible", conflicts)


def evaluate_on_gpus(rules: Iterable[Rule], facts: Facts) -> Verdict:
    """Return the worst verdict on any GPU, with the conflicts of all; without GPUs, the verdict on the facts."""
    rules, on_gpus = tuple(rules), on_each_gpu(facts)
    linked = linked_rules(rules, "gpu", facts) if len(on_gpus) > 1 else rules
    of_gpus = {rule.id for rule in linked}
    other_rules = [rule for rule in rules if rule.id not in of_gpus]
    verdicts = [evaluate(other_rules, facts)] if other_rules else []
    verdicts += [evaluate(linked, on_gpu) for on_gpu in on_gpus]
    worst = min(verdicts, key=lambda verdict: WORST_FIRST.index(verdict.answer))
    conflicts = {
        tuple(rule.id for rule in conflict.rules): conflict for verdict in verdicts for conflict in verdict.conflicts
    }
    return replace(worst, conflicts=tuple(conflicts.values()))


def judge(knowledge: Knowledge, facts: Facts) -> Verdict:
    """Return the verdict of the rules about a lock on the facts, on each of their GPUs."""
    return evaluate_on_gpus(rules_about(RuleSubject("lock", facts, knowledge)), facts)


def implied_literals(rules: Iterable[Rule], facts: Facts) -> list[Literal]:
    """Return the literals that unit propagation of the rules and facts implies.

    The list is partial if the rules contradict the facts.
    """
    problem = Problem(rules, facts)
    pairs = [pair for rule in problem.rules.values() for pair in _clauses_of_rule(problem, rule)]
    literals = {id(clause): rule_literals for clause, rule_literals in pairs}
    all_clauses = [*problem.fact_clauses, *(clause for clause, _ in pairs)]
    state = State.of(problem.domains, all_clauses)
    state.propagate(all_clauses)
    return [
        literal
        for step in state.steps
        for literal in literals.get(id(step.clause), ())
        if problem.mask(literal)[0] == step.name
    ]


def _clauses_of_rule(problem: Problem, rule: Rule) -> Iterator[tuple[Clause, tuple[Literal, ...]]]:
    return zip(problem.clauses_of_rule(rule), clauses(rule), strict=False)  # the clauses of `same` have no literals


def minimal_core(problem: Problem, clauses: Sequence[Clause]) -> frozenset[ClauseOrigin] | None:
    """Return the origins of a minimal unsatisfiable core of the clauses; None if they are satisfiable."""
    answer = solve(problem.domains, clauses)
    return smallest(problem.domains, clauses, answer.origins) if isinstance(answer, Contradiction) else None


def _conflicts(problem: Problem, rules: Sequence[Rule]) -> Iterator[Conflict]:
    """Yield disjoint minimal conflicts: of one rule, then of several rules, first of binding ones."""
    blamed: set[str] = set()
    for rule in rules:
        if rules_core(problem, [rule]):
            blamed.add(rule.id)
            yield conflict_of_rules([rule], problem.facts)
    for weakest_too in (False, True):
        remaining = [rule for rule in rules if rule.id not in blamed and (rule.binding or weakest_too)]
        while core := rules_core(problem, remaining):
            guilty = [rule for rule in remaining if ClauseOrigin("rule", rule.id) in core]
            yield conflict_of_rules(guilty, problem.facts)
            blamed |= {rule.id for rule in guilty}
            remaining = [rule for rule in remaining if rule.id not in blamed]


def rules_core(problem: Problem, rules: Sequence[Rule]) -> frozenset[ClauseOrigin] | None:
    """Return the minimal core (see `minimal_core`) of the rules together with the facts about their names."""
    rule_clauses = [clause for rule in rules for clause in problem.clauses_of_rule(rule)]
    names = {name for clause in rule_clauses for name, _ in clause.literals}
    facts = [clause for clause in problem.fact_clauses if clause.literals[0][0] in names]
    facts = [clause for clause in facts if clause.origin.kind != "known"]
    return minimal_core(problem, [*facts, *rule_clauses])


def conflict_of_rules(rules: Sequence[Rule], facts: Facts) -> Conflict:
    fact_texts = {name: fact.text for name, fact in {**facts.packages, **facts.versions}.items()} | dict(facts.names)
    fact_texts |= {f"{ENV}{name}": value for name, value in (facts.env or {}).items()}
    names = frozenset[str]().union(*(rule.names for rule in rules))
    return Conflict(tuple(rules), {name: fact_texts[name] for name in sorted(names & set(fact_texts))})


def conflict_of_core(problem: Problem, facts: Facts, origins: frozenset[ClauseOrigin]) -> Conflict:
    """Return the conflict behind a core: its rules, its statements in the form of rules, and its facts."""
    rules = [rule for rule in problem.rules.values() if ClauseOrigin("rule", rule.id) in origins]
    stated = sorted(origins & set(problem.statements))
    clauses = [
        *problem.clauses_of(problem.masks_of(facts)),
        *(clause for clause in problem.clauses if clause.origin.kind != "fact"),
    ]
    blamed = [clause for clause in clauses if clause.origin in origins]
    conflict = conflict_of_rules([*rules, *(_rule_of_statement(problem, origin, blamed) for origin in stated)], facts)
    needed = {origin.name for origin in origins if origin.kind == "fact"}
    mentioned = {name for blamed_clause in blamed for name, _ in blamed_clause.literals}
    needed |= {name.rstrip("+") for name in mentioned if len(problem.atoms[name]) == 1}  # a name with one atom
    facts_needed = {name: text for name, text in conflict.facts.items() if name in needed}
    return replace(conflict, facts=facts_needed, doubt=any(origin.kind == "wheels" for origin in origins))


def assumptions(problem: Problem, origins: Iterable[ClauseOrigin]) -> list[str]:
    """Return sentences about the origins that assume that all releases are known."""
    names = sorted(origin.name for origin in origins if origin.kind == "known")
    return [f"it needs a release of {name} that is not known here: {known_span(problem, name)}" for name in names]


def known_span(problem: Problem, name: str) -> str:
    releases = problem.releases[name]
    unread = releases.older.range if releases.older and releases.older.range else ()
    first = next((version for version in releases.versions if version not in unread), releases.versions[0])
    return f"those of {first} to {releases.versions[-1]} are, as of {releases.package.read}"


def _rule_of_statement(problem: Problem, origin: ClauseOrigin, blamed: Iterable[Clause]) -> Rule:
    """Return a statement as a rule about its releases that the other clauses admit."""
    other_clauses = [clause for clause in blamed if clause.origin != origin]
    state = State.of(problem.domains, other_clauses)
    state.propagate(other_clauses)
    first, *same = problem.statements[origin]
    whole = replace(first, releases=reduce(or_, (statement.releases for statement in same), first.releases))
    remaining = state.domains[first.package] >> 1  # after the atom of its absence
    return problem.releases[first.package].rule(whole, remaining)


def _satisfied(rule_clauses: Iterable[Clause], allowed: dict[str, int]) -> bool:
    return all(any(not allowed[name] & ~mask for name, mask in clause.literals) for clause in rule_clauses)
