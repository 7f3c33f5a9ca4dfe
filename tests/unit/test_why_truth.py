"""tests/truth/*.yaml and bench/why_truth.py: the cases are whole, and answers are judged as the page says."""

from __future__ import annotations

import datetime as dt
import importlib
import re
import shlex
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
OVERRIDE = {"severity": "error", "kind": "pip-refuses", "override": "torch==2.6.0"}


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("why_truth")


@pytest.fixture
def cases(truth: ModuleType) -> list[Any]:
    return [case for name in ("shipped", "broken") for case in truth.load(name)]


def test_there_are_sixty_of_each_and_a_fifth_is_held_out(cases: list[Any]) -> None:
    for broken in (False, True):
        group = [case for case in cases if case.broken == broken and not case.drawn]
        assert len(group) >= 60
        assert 0.15 <= sum(case.held for case in group) / len(group) <= 0.3


def test_drawn_cases_are_held_out_and_have_their_first_outcome(cases: list[Any]) -> None:
    drawn = [case for case in cases if case.drawn]
    assert {case.first for case in drawn} <= {"right", "wrong", "unknown"}
    assert all(case.held and case.side in {"inside", "outside"} for case in drawn)
    assert min(sum(case.broken == broken for case in drawn) for broken in (False, True)) >= 60


def test_each_case_has_a_name_of_its_own_a_class_a_question_and_a_public_source(
    cases: list[Any], truth: ModuleType
) -> None:
    assert [name for name, number in Counter(case.id for case in cases).items() if number > 1] == []
    for case in cases:
        assert case.kind in (truth.BAD if case.broken else truth.GOOD), case.id
        assert shlex.split(case.ask), case.id
        assert case.source.startswith("https://github.com/"), case.id
        assert dt.date(2024, 1, 1) <= dt.date.fromisoformat(case.date), case.id


def test_a_broken_case_says_what_a_right_answer_names(cases: list[Any]) -> None:
    for case in cases:
        assert bool(case.names) == bool(case.because) == case.broken, case.id
        for pattern in case.names:
            re.compile(pattern)


def answer(truth: ModuleType, code: int, kind: str | None = None, *conflicts: dict[str, Any]) -> Any:
    rows = [
        {"components": {"torch": "2.6.0"}, "rule": "a-rule", "reason": "ABI.", "conflict": number, "fix": "", **each}
        for number, each in enumerate(conflicts)
    ]
    return truth.Answer(code, {"kind": kind, "conflicts": rows}, seconds=0.1)


def case(truth: ModuleType, kind: str, *, broken: bool, **more: Any) -> Any:
    return truth.Case("a", kind, "torch==2.6.0", "https://github.com/a/b", "2026-01-01", broken=broken, **more)


def test_a_shipped_set_is_right_where_it_is_compatible_or_only_its_overridden_pin_is_told(truth: ModuleType) -> None:
    good = case(truth, "O", broken=False)
    assert truth.outcome(good, answer(truth, 0), is_named=False) == "right"
    assert truth.outcome(good, answer(truth, 1, "pip-refuses", OVERRIDE), is_named=False) == "right"
    assert truth.outcome(good, answer(truth, 1, "breaks", OVERRIDE), is_named=False) == "wrong"
    assert (
        truth.outcome(good, answer(truth, 1, "pip-refuses", {**OVERRIDE, "override": None}), is_named=False) == "wrong"
    )
    assert truth.outcome(good, answer(truth, 2), is_named=False) == "unknown"
    resolved = case(truth, "P", broken=False)
    assert truth.outcome(resolved, answer(truth, 1, "pip-refuses", OVERRIDE), is_named=False) == "wrong"


def test_a_broken_set_is_right_where_it_is_refused_and_half_right_where_a_warning_names_the_reason(
    truth: ModuleType,
) -> None:
    bad = case(truth, "S", broken=True)
    assert truth.outcome(bad, answer(truth, 1), is_named=False) == "right"
    assert truth.outcome(bad, answer(truth, 0), is_named=True) == "half"
    assert truth.outcome(bad, answer(truth, 0), is_named=False) == "wrong"
    assert truth.outcome(bad, answer(truth, 64), is_named=False) == "unknown"
    assert truth.outcome(case(truth, "W", broken=True), answer(truth, 0), is_named=True) == "right"


def test_the_reason_is_named_where_one_conflict_matches_all_patterns(truth: ModuleType) -> None:
    answered = answer(
        truth, 1, None, {"severity": "error"}, {"severity": "error", "components": {"vllm": "0.8"}, "reason": "x"}
    )
    assert answered.gives(["torch", "abi"])
    assert not answered.gives(["vllm", "abi"])


def test_a_proposal_is_wrong_where_the_source_says_it_fails_too_or_nobody_made_it(truth: ModuleType) -> None:
    bad = case(truth, "H", broken=True, never={"vllm": truth.SpecifierSet("<0.9.2")})
    assert "fails too" in truth.fault(bad, answer(truth, 1), {"vllm": "==0.9.0"}, [], app=None)
    assert "is known" in truth.fault(bad, answer(truth, 1), {"vllm": "==0.9.99"}, [], app=None)


def test_versions_that_fail_together_may_be_proposed_apart(truth: ModuleType) -> None:
    never = {"vllm": truth.SpecifierSet("<=0.8.5"), "torch": truth.SpecifierSet("==2.6.0+cu126")}
    bad, changed = case(truth, "S", broken=True, never=never), {"vllm": "==0.8.5"}
    assert truth.fails_too(bad, changed, ["vllm==0.8.5", "torch==2.6.0+cu126"]) == "vllm 0.8.5"
    assert not truth.fails_too(bad, changed | {"torch": "==2.6.0"}, ["vllm==0.8.5", "torch==2.6.0"])
    assert not truth.fails_too(bad, {"torch": "==2.6.0"}, ["vllm==0.8.2", "torch==2.6.0"])
    assert not truth.fails_too(bad, {"vllm": "==0.9.0"}, ["vllm==0.9.0", "torch==2.6.0+cu126"])
