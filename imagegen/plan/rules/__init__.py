"""Compatibility: rules, package metadata and facts -> verdict, reasons, what works instead."""

from imagegen.plan.rules.check import Conflict, Verdict, check
from imagegen.plan.rules.evaluate import constraints, floor, judge, judge_on
from imagegen.plan.rules.facts import Fact, Facts, facts_of_cell, facts_of_lock
from imagegen.plan.rules.grid import Standing, standings
from imagegen.plan.rules.nearby import Near, Surroundings, nearby, nearest
from imagegen.plan.rules.question import Question, ask
from imagegen.plan.rules.statements import MetadataCache
from imagegen.plan.rules.vocabulary import Vocabulary
from imagegen.plan.rules.why import Explanation, explain

__all__ = [
    "Conflict",
    "Explanation",
    "Fact",
    "Facts",
    "MetadataCache",
    "Near",
    "Question",
    "Standing",
    "Surroundings",
    "Verdict",
    "Vocabulary",
    "ask",
    "check",
    "constraints",
    "explain",
    "facts_of_cell",
    "facts_of_lock",
    "floor",
    "judge",
    "judge_on",
    "nearby",
    "nearest",
    "standings",
]
