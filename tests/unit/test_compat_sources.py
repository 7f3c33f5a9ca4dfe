"""The list of sources: which rules count for a question, a cell and a lock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.compat import Facts
from imagegen.compat.knowledge import Knowledge, RuleSubject, SubjectKind
from imagegen.compat.models import Models
from imagegen.compat.sources import RULE_SOURCES, rules_about, rules_of_cells
from tests.support.package_metadata import question, rule

MODELS = Models("2026-11-24", {"transformers": "4.40"}, {"transformers": "s"}, {"qwen3": {"transformers": "4.51"}})
NAMES = [rule("certain", {"a": ""}), rule("possible", {"a": ""}, severity="warning")]
KNOWLEDGE = Knowledge([rule("written", {"a": ""})], shared_names=lambda _: NAMES, model_types=lambda: MODELS)


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("question", ["written", "model-qwen3-transformers", "certain", "possible", "host"]),
        ("suggestion", ["written", "model-qwen3-transformers", "certain", "possible", "host"]),
        ("cell", ["written", "certain"]),
        ("lock", ["written", "certain"]),
        ("package", []),
    ],
)
def test_each_kind_of_subject_has_its_sources(kind: SubjectKind, ids: list[str]) -> None:
    asked = replace(question(a="==1.0"), model="qwen3", hosts=(rule("host", {}),))
    about = RuleSubject.of_question(asked, KNOWLEDGE, kind)
    assert [each.id for each in rules_about(about)] == ids


def test_rules_of_cells_have_no_context() -> None:
    direct = rule("direct", {"a": ""}, direct=True)
    assert rules_of_cells(Knowledge([direct])) == (direct,)
    (warning,) = rules_about(RuleSubject("cell", Facts({}, {}, {}, closed=False), Knowledge([direct])))
    assert warning.severity == "warning"


def test_each_source_is_listed_once() -> None:
    functions = [source.rules for source in RULE_SOURCES]
    assert len({*functions}) == len(functions)
