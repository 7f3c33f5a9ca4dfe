"""Compatibility: rules, package metadata and facts -> verdict, reasons, suggestions."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.plan.rules.api import api_rules
    from imagegen.plan.rules.builds import choose_builds
    from imagegen.plan.rules.check import check_rules, unconfirmed
    from imagegen.plan.rules.completion import complete, complete_names, replace_base_torch
    from imagegen.plan.rules.demands import demands_of, load_demands
    from imagegen.plan.rules.evaluate import (
        cell_answers,
        evaluate_cell,
        evaluate_on,
        judge,
        minimum_version,
        rule_constraints,
    )
    from imagegen.plan.rules.facts import Fact, Facts, facts_of_cell, facts_of_lock
    from imagegen.plan.rules.knowledge import Knowledge
    from imagegen.plan.rules.question import Question, missing_metadata, parse_question
    from imagegen.plan.rules.scans import ScanCache
    from imagegen.plan.rules.sources import rules_of_cells
    from imagegen.plan.rules.statement_tables import load_table, table_of
    from imagegen.plan.rules.statements import MetadataCache
    from imagegen.plan.rules.suggestions import PlatformChoices, Suggestion, nearest_cell, suggest
    from imagegen.plan.rules.verdict import CellAnswer, Conflict, Verdict, worst_answer
    from imagegen.plan.rules.vocabulary import Vocabulary
    from imagegen.plan.rules.why import Explanation, explain

__all__ = [
    "CellAnswer",
    "Conflict",
    "Explanation",
    "Fact",
    "Facts",
    "Knowledge",
    "MetadataCache",
    "PlatformChoices",
    "Question",
    "ScanCache",
    "Suggestion",
    "Verdict",
    "Vocabulary",
    "api_rules",
    "cell_answers",
    "check_rules",
    "choose_builds",
    "complete",
    "complete_names",
    "demands_of",
    "evaluate_cell",
    "evaluate_on",
    "explain",
    "facts_of_cell",
    "facts_of_lock",
    "judge",
    "load_demands",
    "load_table",
    "minimum_version",
    "missing_metadata",
    "nearest_cell",
    "parse_question",
    "replace_base_torch",
    "rule_constraints",
    "rules_of_cells",
    "suggest",
    "table_of",
    "unconfirmed",
    "worst_answer",
]

__getattr__ = lazy_names(
    __name__,
    {
        "api": ("api_rules",),
        "builds": ("choose_builds",),
        "check": ("check_rules", "unconfirmed"),
        "completion": ("complete", "complete_names", "replace_base_torch"),
        "demands": ("demands_of", "load_demands"),
        "evaluate": ("cell_answers", "evaluate_cell", "evaluate_on", "judge", "minimum_version", "rule_constraints"),
        "facts": ("Fact", "Facts", "facts_of_cell", "facts_of_lock"),
        "knowledge": ("Knowledge",),
        "question": ("Question", "missing_metadata", "parse_question"),
        "scans": ("ScanCache",),
        "sources": ("rules_of_cells",),
        "statement_tables": ("load_table", "table_of"),
        "statements": ("MetadataCache",),
        "suggestions": ("PlatformChoices", "Suggestion", "nearest_cell", "suggest"),
        "verdict": ("CellAnswer", "Conflict", "Verdict", "worst_answer"),
        "vocabulary": ("Vocabulary",),
        "why": ("Explanation", "explain"),
    },
)
