"""Compatibility: rules, package metadata and facts -> verdict, reasons, what works instead."""

from imagegen.plan.rules.check import Conflict, Verdict, check
from imagegen.plan.rules.evaluate import constraints, evaluate, evaluate_on, floor
from imagegen.plan.rules.facts import Fact, Facts, facts_of_cell, facts_of_lock
from imagegen.plan.rules.grid import CellAnswer, cell_answers
from imagegen.plan.rules.question import Question, parse_question
from imagegen.plan.rules.statements import MetadataCache
from imagegen.plan.rules.suggestions import PlatformChoices, Suggestion, nearest, suggest
from imagegen.plan.rules.vocabulary import Vocabulary
from imagegen.plan.rules.why import Explanation, explain

__all__ = [
    "CellAnswer",
    "Conflict",
    "Explanation",
    "Fact",
    "Facts",
    "MetadataCache",
    "PlatformChoices",
    "Question",
    "Suggestion",
    "Verdict",
    "Vocabulary",
    "cell_answers",
    "check",
    "constraints",
    "evaluate",
    "evaluate_on",
    "explain",
    "facts_of_cell",
    "facts_of_lock",
    "floor",
    "nearest",
    "parse_question",
    "suggest",
]
