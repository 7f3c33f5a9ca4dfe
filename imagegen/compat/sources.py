"""All sources of rules. This list decides which rules apply to a question, a cell or a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from imagegen.compat import builds, model_types, overrides, scans, torch_pins
from imagegen.compat.facts import Facts, rules_in_context
from imagegen.compat.knowledge import Knowledge, RuleSubject, SubjectKind
from imagegen.compat.question import required_by_others
from imagegen.compat.rule import Rule


class RuleSource(NamedTuple):
    """A source of rules about some kinds of subjects; a cell can accept or override its rules if it is `in_context`."""

    rules: Callable[[RuleSubject], Iterable[Rule]]
    kinds: tuple[SubjectKind, ...]
    in_context: bool = True


def _matrix_rules(subject: RuleSubject) -> Iterable[Rule]:
    return subject.knowledge.rules


def _shared_names(subject: RuleSubject) -> Iterable[Rule]:
    return subject.knowledge.shared_names(subject.facts.packages)


def _binding_shared_names(subject: RuleSubject) -> Iterable[Rule]:
    return (rule for rule in subject.knowledge.shared_names(None) if rule.binding)


def _card_hosts(subject: RuleSubject) -> Iterable[Rule]:
    return subject.question.hosts if subject.question else ()


RULE_SOURCES = (
    RuleSource(_matrix_rules, ("question", "suggestion", "cell", "lock")),
    RuleSource(model_types.rules, ("question", "suggestion")),
    RuleSource(_shared_names, ("question", "suggestion")),
    RuleSource(_binding_shared_names, ("cell", "lock")),
    RuleSource(builds.rules, ("question", "suggestion")),
    RuleSource(builds.unscanned_rules, ("suggestion",)),
    RuleSource(overrides.rules, ("question", "suggestion", "cell"), in_context=False),
    RuleSource(_card_hosts, ("question", "suggestion")),
    RuleSource(scans.locked_rules, ("lock",)),
    RuleSource(scans.rules, ("package",)),
    RuleSource(torch_pins.rules, ("package",), in_context=False),
)


def rules_about(subject: RuleSubject) -> list[Rule]:
    """Return the rules of all sources about a subject, with the severity that they have in its context."""
    question = subject.question
    required = required_by_others(question, subject.knowledge.metadata) if question else ()
    rules: list[Rule] = []
    for source in _sources_of(subject.kind):
        listed = tuple(source.rules(subject))
        rules += rules_in_context(listed, subject.facts, required) if source.in_context and listed else listed
    return rules


def rules_of_cells(knowledge: Knowledge) -> tuple[Rule, ...]:
    """Return the rules about any cell, without the context of one."""
    subject = RuleSubject("cell", Facts({}, {}, {}, closed=False), knowledge)
    return tuple(rule for source in _sources_of(subject.kind) for rule in source.rules(subject))


@cache  # a problem asks about each of its packages
def _sources_of(kind: SubjectKind) -> tuple[RuleSource, ...]:
    return tuple(source for source in RULE_SOURCES if kind in source.kinds)
