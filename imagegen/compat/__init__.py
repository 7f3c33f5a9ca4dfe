"""Compatibility: rules, package metadata and facts -> verdict, reasons, what works instead."""

from imagegen.compat.check import check
from imagegen.compat.constraints import constraints
from imagegen.compat.evaluate import judge, judge_on
from imagegen.compat.facts import Fact, Facts, facts_of_cell, facts_of_lock
from imagegen.compat.floor import floor
from imagegen.compat.grid import Row, Standing, standings, survey
from imagegen.compat.nearby import Near, Surroundings, nearby
from imagegen.compat.nearest import nearest
from imagegen.compat.question import Question, ask
from imagegen.compat.statements import Library
from imagegen.compat.verdict import Conflict, Verdict
from imagegen.compat.vocabulary import Vocabulary
from imagegen.compat.why import Explanation, explain

__all__ = [
    "Conflict",
    "Explanation",
    "Fact",
    "Facts",
    "Library",
    "Near",
    "Question",
    "Row",
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
    "survey",
]
