"""Compatibility: rules, package metadata and facts -> verdict, reasons, suggestions."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.plan.rules.api import api_rules
    from imagegen.plan.rules.builds import build_rules, choose_builds
    from imagegen.plan.rules.check import check_rules, unconfirmed
    from imagegen.plan.rules.declared import complete_names, replace_base_torch
    from imagegen.plan.rules.demands import demands_of, load_demands
    from imagegen.plan.rules.evaluate import cell_answers, evaluate_cell, evaluate_on, minimum_version, rule_constraints
    from imagegen.plan.rules.facts import Fact, Facts, facts_of_cell, facts_of_lock, rules_in_context
    from imagegen.plan.rules.question import Question, missing_metadata, parse_question
    from imagegen.plan.rules.scans import ScanCache
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
    "MetadataCache",
    "PlatformChoices",
    "Question",
    "ScanCache",
    "Suggestion",
    "Verdict",
    "Vocabulary",
    "api_rules",
    "build_rules",
    "cell_answers",
    "check_rules",
    "choose_builds",
    "complete_names",
    "demands_of",
    "evaluate_cell",
    "evaluate_on",
    "explain",
    "facts_of_cell",
    "facts_of_lock",
    "load_demands",
    "load_table",
    "minimum_version",
    "missing_metadata",
    "nearest_cell",
    "parse_question",
    "replace_base_torch",
    "rule_constraints",
    "rules_in_context",
    "suggest",
    "table_of",
    "unconfirmed",
    "worst_answer",
]

__getattr__ = lazy_names(
    __name__,
    {
        "api": ("api_rules",),
        "builds": ("build_rules", "choose_builds"),
        "check": ("check_rules", "unconfirmed"),
        "declared": ("complete_names", "replace_base_torch"),
        "demands": ("demands_of", "load_demands"),
        "evaluate": ("cell_answers", "evaluate_cell", "evaluate_on", "minimum_version", "rule_constraints"),
        "facts": ("Fact", "Facts", "facts_of_cell", "facts_of_lock", "rules_in_context"),
        "question": ("Question", "missing_metadata", "parse_question"),
        "scans": ("ScanCache",),
        "statement_tables": ("load_table", "table_of"),
        "statements": ("MetadataCache",),
        "suggestions": ("PlatformChoices", "Suggestion", "nearest_cell", "suggest"),
        "verdict": ("CellAnswer", "Conflict", "Verdict", "worst_answer"),
        "vocabulary": ("Vocabulary",),
        "why": ("Explanation", "explain"),
    },
)
