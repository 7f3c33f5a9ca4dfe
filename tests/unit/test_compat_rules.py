"""Each shipped rule against facts from its source; removing, inverting or widening any makes a case here fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from imagegen import spec as matrix
from imagegen.compat import Facts, Knowledge, judge, rule_constraints
from imagegen.compat.evaluate import evaluate
from imagegen.compat.rule import Rule
from imagegen.spec.cell_facts import facts_of_cell
from tests.support.matrix_samples import shipped_matrix
from tests.support.rule_cases import (
    Case,
    attention,
    builds,
    cuda,
    engines,
    environment,
    gpu_code,
    scanned,
    torch,
    training,
)

MATRIX = shipped_matrix()
RULES = {rule.id: rule for rule in MATRIX.rules}
CASES: Mapping[str, Case] = {
    name: each
    for module in (torch, builds, attention, engines, training, cuda, environment, gpu_code)
    for name, each in module.CASES.items()
} | scanned.ARM64
ANSWERS = {"error": "incompatible", "suspicion": "unknown", "warning": "compatible"}


def blamed(rules: Mapping[str, Rule], facts: Facts) -> list[list[str]]:
    return [[rule.id for rule in conflict.rules] for conflict in evaluate(rules.values(), facts).conflicts]


def test_every_shipped_rule_has_a_case() -> None:
    assert set(RULES) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_what_its_source_says_fails_is_blamed_on_this_rule_and_no_other(name: str) -> None:
    rest = {other: rule for other, rule in RULES.items() if other != name}
    for facts in CASES[name].fails:
        verdict = evaluate(RULES.values(), facts)
        (conflict,) = verdict.conflicts
        assert [rule.id for rule in conflict.rules] == [name]
        assert verdict.answer == ANSWERS[conflict.severity]
        assert not evaluate(rest.values(), facts).conflicts  # without this rule nothing says so


@pytest.mark.parametrize("name", CASES)
def test_what_its_source_says_works_is_compatible(name: str) -> None:
    verdict = evaluate(RULES.values(), CASES[name].works)
    assert (verdict.answer, verdict.conflicts) == ("compatible", ())
    for facts in CASES[name].silent:
        assert not blamed({name: RULES[name]}, facts)


@pytest.mark.parametrize("name", CASES)
def test_an_inverted_rule_contradicts_its_case(name: str) -> None:
    rule, each = RULES[name], CASES[name]
    if rule.same:
        differ = [replace(rule, same=(), conflict={other: ""}) for other in rule.same]
        assert any(blamed({name: inverted}, each.works) for inverted in differ)
        return
    inverted = replace(rule, then=rule.conflict, conflict=rule.then)
    assert [blamed({name: inverted}, facts) for facts in each.fails] != [[[name]]] * len(each.fails)


def _widened(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """The rule with one of its conditions for anything at all, for a variable for any text."""
    for side in ("when", "conflict"):
        conditions: Mapping[str, str] = getattr(rule, side)
        for name, text in conditions.items():
            anything = "*" if name.startswith("env.") else ""
            if text == anything or name in {"base", "platform"}:
                continue
            wider = {**conditions, name: anything}
            yield f"{side} {name}", replace(rule, when=wider) if side == "when" else replace(rule, conflict=wider)


WIDENED = {f"{rule.id}: {what}": (rule.id, wider) for rule in RULES.values() for what, wider in _widened(rule)}


@pytest.mark.parametrize("name", WIDENED)
def test_a_widened_rule_refuses_what_works(name: str) -> None:
    rule, wider = WIDENED[name]
    assert any(blamed({rule: wider}, facts) for facts in (CASES[rule].works, *CASES[rule].silent))


DEFAULTS = {MATRIX.select(image)[0].id for image in MATRIX.defaults}
CELLS = [
    pytest.param(cell, marks=[] if cell.id in DEFAULTS else [pytest.mark.slow], id=cell.id) for cell in MATRIX.cells()
]


@pytest.mark.parametrize("cell", CELLS)
def test_no_rule_refuses_a_shipped_cell(cell: matrix.Cell) -> None:
    assert judge(Knowledge(MATRIX.rules), facts_of_cell(cell)).answer != "incompatible"


def test_uv_gets_what_metadata_lacks() -> None:
    (cell,) = MATRIX.select("cpu-grpo-cpu-py311")
    assert "hydra-core>=1.3" in rule_constraints(MATRIX.rules, facts_of_cell(cell))


def test_a_commit_is_distinguished_from_the_release_that_calls_itself_the_same() -> None:
    cells = {each.id: facts_of_cell(each) for each in MATRIX.cells() if each.image == "blackwell-vllm"}
    mbridge = [facts.packages["mbridge"] for facts in cells.values() if "mbridge" in facts.packages]
    assert {each.local for each in mbridge} == {"", "git.641a5a0"}


def test_a_third_partys_wheel_may_have_a_label_and_one_that_is_compiled_here_has_none() -> None:
    cells = {each.axes["attention"]: each for each in MATRIX.cells() if each.image == "blackwell-vllm"}
    labels = {name: facts_of_cell(cell).packages["flash-attn"].local for name, cell in cells.items() if name != "sdpa"}
    assert labels == {"flash-attn": None, "flash-attn-source": ""}
