"""Compatibility: rules, package metadata and facts -> verdict, reasons, suggestions."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.compat.api import api_rules
    from imagegen.compat.builds import choose_builds
    from imagegen.compat.cells import answer_each, cell_answer
    from imagegen.compat.check import check_rules, unconfirmed
    from imagegen.compat.completion import complete_names, replace_base_torch
    from imagegen.compat.demands import demands_of, load_demands
    from imagegen.compat.evaluate import evaluate_on_gpus, judge, minimum_version, rule_constraints
    from imagegen.compat.facts import Fact, Facts
    from imagegen.compat.knowledge import Knowledge
    from imagegen.compat.knowledge_files import KnowledgeFiles
    from imagegen.compat.question import Question
    from imagegen.compat.scans import ScanCache
    from imagegen.compat.sources import rules_of_cells
    from imagegen.compat.statement_tables import load_table, table_of
    from imagegen.compat.statements import MetadataCache
    from imagegen.compat.suggestions import PlatformChoices, suggest
    from imagegen.compat.verdict import CellAnswer, Conflict, Verdict, worst_answer
    from imagegen.compat.why import Explanation, explain

__all__ = [
    "CellAnswer",
    "Conflict",
    "Explanation",
    "Fact",
    "Facts",
    "Knowledge",
    "KnowledgeFiles",
    "MetadataCache",
    "PlatformChoices",
    "Question",
    "ScanCache",
    "Verdict",
    "answer_each",
    "api_rules",
    "cell_answer",
    "check_rules",
    "choose_builds",
    "complete_names",
    "demands_of",
    "evaluate_on_gpus",
    "explain",
    "judge",
    "load_demands",
    "load_table",
    "minimum_version",
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
        "cells": ("answer_each", "cell_answer"),
        "check": ("check_rules", "unconfirmed"),
        "completion": ("complete_names", "replace_base_torch"),
        "demands": ("demands_of", "load_demands"),
        "evaluate": ("evaluate_on_gpus", "judge", "minimum_version", "rule_constraints"),
        "facts": ("Fact", "Facts"),
        "knowledge": ("Knowledge",),
        "knowledge_files": ("KnowledgeFiles",),
        "question": ("Question",),
        "scans": ("ScanCache",),
        "sources": ("rules_of_cells",),
        "statement_tables": ("load_table", "table_of"),
        "statements": ("MetadataCache",),
        "suggestions": ("PlatformChoices", "suggest"),
        "verdict": ("CellAnswer", "Conflict", "Verdict", "worst_answer"),
        "why": ("Explanation", "explain"),
    },
)
