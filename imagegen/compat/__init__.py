"""Compatibility: rules, package metadata and facts -> verdict, reasons, suggestions."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.compat.api import api_rules
    from imagegen.compat.builds import choose_builds
    from imagegen.compat.check import check_rules, unconfirmed
    from imagegen.compat.completion import complete, complete_names, replace_base_torch
    from imagegen.compat.demands import demands_of, load_demands
    from imagegen.compat.evaluate import (
        answer_each,
        evaluate_on_gpus,
        judge,
        minimum_version,
        rule_constraints,
    )
    from imagegen.compat.facts import Fact, Facts
    from imagegen.compat.knowledge import Knowledge
    from imagegen.compat.question import Question, missing_metadata, parse_question
    from imagegen.compat.scans import ScanCache
    from imagegen.compat.sources import rules_of_cells
    from imagegen.compat.statement_tables import load_table, table_of
    from imagegen.compat.statements import MetadataCache
    from imagegen.compat.suggestions import PlatformChoices, Suggestion, suggest
    from imagegen.compat.verdict import CellAnswer, Conflict, Verdict, worst_answer
    from imagegen.compat.vocabulary import Vocabulary
    from imagegen.compat.why import Explanation, explain

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
    "answer_each",
    "api_rules",
    "check_rules",
    "choose_builds",
    "complete",
    "complete_names",
    "demands_of",
    "evaluate_on_gpus",
    "explain",
    "judge",
    "load_demands",
    "load_table",
    "minimum_version",
    "missing_metadata",
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
        "evaluate": ("answer_each", "evaluate_on_gpus", "judge", "minimum_version", "rule_constraints"),
        "facts": ("Fact", "Facts"),
        "knowledge": ("Knowledge",),
        "question": ("Question", "missing_metadata", "parse_question"),
        "scans": ("ScanCache",),
        "sources": ("rules_of_cells",),
        "statement_tables": ("load_table", "table_of"),
        "statements": ("MetadataCache",),
        "suggestions": ("PlatformChoices", "Suggestion", "suggest"),
        "verdict": ("CellAnswer", "Conflict", "Verdict", "worst_answer"),
        "vocabulary": ("Vocabulary",),
        "why": ("Explanation", "explain"),
    },
)
