"""Judging all cells at once against explaining each for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.compat import PlatformChoices, explain, judge, suggest
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.question import Question
from imagegen.compat.rule import Override, Rule
from imagegen.core.types import Gpu
from imagegen.spec.cell_facts import cell_answers, facts_of_cell
from imagegen.spec.foundation import Base
from imagegen.spec.model import Cell, Component, EnvVar, GitSource, Requirement, Sdist
from tests.support.interpreters import DEBIAN
from tests.support.package_metadata import library, package, rule

BASE = Base("debian12", "debian", "bookworm", None, "debian12", "2.36", {}, "")
HOPPER, BLACKWELL = Gpu("sm_90", "9.0", "hopper", ()), Gpu("sm_120", "12.0", "blackwell", ())


def cell(
    requirements: Mapping[str, str], name: str = "x", cuda: str = "cu128", gpus: Sequence[Gpu] = (HOPPER, BLACKWELL)
) -> Cell:
    required = tuple(
        Requirement(Component(each, each, "", ()), specifier, "", "pypi")
        for each, specifier in sorted(requirements.items())
    )
    axes = {"cuda": cuda, "python": "3.11", "platform": "linux/amd64"}
    return Cell(
        name, "x", "", "", axes, BASE, DEBIAN, required, (), {}, (EnvVar("MODE", "fast", ""),), {}, gpus=tuple(gpus)
    )


KNOWN = {
    "torch": ("2.8.0", "2.9.0", "2.9.1"),
    "vllm": ("0.10.0", "0.11.0", "0.12.0"),
    "megatron-core": ("0.15.0", "0.16.0"),
}
SPECIFIERS = {
    "torch": ["<2.9", ">=2.9", "==2.9.1", ""],
    "vllm": ["<0.11", ">=0.11", "==0.12.0", "!=0.11.0"],
    "megatron-core": ["<0.16", ">=0.16"],
    "gpu": [">=10", "<10", "==12.0"],
    "cuda": [">=12.8", "<12.8", "cpu"],
    "python": [">=3.11", ">=3.12"],
    "env.MODE": ["fast", "s*", ""],
}
CONDITION = st.sampled_from(sorted(SPECIFIERS)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(SPECIFIERS[name]))
)


@st.composite
def _rules(draw: st.DrawFn) -> list[Rule]:
    made = []
    for number in range(draw(st.integers(0, 5))):
        conditions = draw(st.lists(CONDITION, min_size=2, max_size=4, unique_by=lambda each: each[0]))
        cut = draw(st.integers(1, len(conditions) - 1))
        sides = {draw(st.sampled_from(["then", "conflict"])): dict(conditions[cut:])}
        made.append(rule(f"r{number}", dict(conditions[:cut]), **sides))
    return made


@given(_rules(), st.fixed_dictionaries({name: st.sampled_from(["", *SPECIFIERS[name]]) for name in KNOWN}))
def test_a_cells_standing_never_contradicts_its_explanation(rules: list[Rule], pins: dict[str, str]) -> None:
    """Propagation alone may leave open what search refutes, never the other way round."""
    requested, known = cell(pins), library(*(package(name, dict.fromkeys(KNOWN[name], ())) for name in KNOWN))
    found = cell_answers([requested], Knowledge(rules, known))[requested.id]
    whole = explain(Question({}, facts_of_cell(requested)), Knowledge(rules, known))
    if found.answer == "incompatible":
        assert whole.answer == "incompatible"
        assert found.reason
    if whole.answer == "compatible":
        assert found.answer == "compatible"
    exact = all(specifier.startswith("==") or len(KNOWN[name]) == 1 for name, specifier in pins.items())
    if exact:
        assert found.answer == whole.answer


FIELD = library(
    package("torch", dict.fromkeys(KNOWN["torch"], ())),
    package("vllm", {"0.10.0": ["torch==2.8.0"], "0.11.0": ["torch==2.9.0"], "0.12.0": ["torch==2.9.1", "cv>=2"]}),
    package("cv", {"1.0": (), "2.0": ["numpy>=2"], "2.1": ["numpy>=2"]}),
    package("numpy", {"1.26": (), "2.0": ()}),
    package("megatron-core", {"0.15.0": ["numpy<2"], "0.16.0": ["numpy"]}),
    package("other", {"1.0": ["numpy<2"], "2.0": ["stranger==3.0; python_version < '3.12'"]}),
    package("stranger", {"2.0": ()}),
    package("tagged", {"1.0": ()}, wheels=("cp312-cp312-manylinux_2_28_x86_64",)),
)


def answered(requirements: Mapping[str, str], *rules: Rule) -> tuple[str, str]:
    (found,) = cell_answers([cell(requirements)], Knowledge(rules, FIELD)).values()
    return found.answer, found.reason


@pytest.mark.parametrize(
    ("requirements", "answer", "reason"),
    [
        ({"torch": "==2.9.1", "vllm": "==0.12.0"}, "compatible", ""),
        ({"torch": "==2.9.1", "vllm": "==0.11.0"}, "incompatible", "vllm 0.11.0 requires torch==2.9.0."),
        (
            {"vllm": "==0.12.0", "other": "==1.0"},
            "incompatible",
            "cv 2.0 to 2.1 require numpy>=2. other 1.0 requires numpy<2. vllm 0.12.0 requires cv>=2.",
        ),
        (
            {"other": "==2.0"},
            "unknown",
            "it needs a release of stranger that is not known here: those of 2.0 to 2.0 are, as of 2026-11-21",
        ),
        ({"tagged": ""}, "unknown", "tagged 1.0 has wheels for Python 3.12 alone."),
    ],
)
def test_a_cell_has_a_reason_in_one_line(requirements: dict[str, str], answer: str, reason: str) -> None:
    assert answered(requirements) == (answer, reason)


def test_a_remembered_rule_leaves_a_cell_unknown() -> None:
    doubt = rule("doubt", {"torch": ""}, {"gpu": "<10"}, evidence="remembered")
    assert answered({"torch": "==2.9.1"}, doubt) == ("unknown", "because doubt")


def test_a_commit_is_not_held_to_what_a_release_states() -> None:
    plain = cell({"megatron-core": "==0.15.0", "vllm": "==0.12.0"})
    core, vllm = plain.requirements
    commit = GitSource("v0.15", "https://example.org/core", "a" * 40, "b" * 40, Sdist("0.15.0", (), ()))
    patched = replace(plain, id="y", requirements=(replace(core, specifier="", git=commit), vllm))
    old = rule("old", {"megatron-core": "<0.15"}, {"vllm": "<0.12"})
    found = cell_answers([plain, patched], Knowledge([old], FIELD))
    assert [each.answer for each in found.values()] == ["incompatible", "compatible"]
    refused = rule("refused", {"megatron-core": "<0.16"}, {"vllm": "<0.12"})  # rules still know its version
    assert [each.answer for each in cell_answers([plain, patched], Knowledge([refused], FIELD)).values()] == [
        "incompatible"
    ] * 2


def test_in_place_of_a_commit_a_release_is_offered_without_its_label() -> None:
    (core,) = cell({"megatron-core": ""}).requirements
    commit = GitSource("v0.15", "https://example.org/core", "a" * 40, "b" * 40, Sdist("0.15.0", (), ()))
    requested = replace(cell({"vllm": "==0.12.0"}), requirements=(replace(core, git=commit),))
    no_commits = rule("no-commits", {"megatron-core": "+git.*"}, {"python": ">=3.12"})
    question = Question({}, facts_of_cell(requested))
    assert explain(question, Knowledge([no_commits], FIELD)).answer == "incompatible"
    found = suggest(question, Knowledge([no_commits], FIELD), PlatformChoices())
    assert [dict(each.changes) for each in found] == [{"megatron-core": "==0.15.0"}]


def test_extras_count_in_the_cells_that_ask_for_them() -> None:
    plain = cell({"verl": "==1.0", "numpy": ">=2"})
    numpy, verl = plain.requirements
    asking = replace(plain, id="y", requirements=(numpy, replace(verl, extras=("old",))))
    known = library(
        package("verl", {"1.0": ()}, extras={"old": ('numpy<2; extra == "old"',)}),
        package("numpy", {"1.26": (), "2.0": ()}),
    )
    found = cell_answers([plain, asking], Knowledge([], known))
    assert [each.answer for each in found.values()] == ["compatible", "incompatible"]
    whole = [explain(Question({}, facts_of_cell(each)), Knowledge([], known)) for each in (plain, asking)]
    assert [each.answer for each in whole] == ["compatible", "incompatible"]


def test_cells_without_cuda_ignore_gpus() -> None:
    every = rule("gpus", {"torch": ""}, {"gpu": ">=20"})
    cells = [cell({"torch": ""}, "a", "cpu", ()), cell({"torch": ""}, "b")]
    assert [each.answer for each in cell_answers(cells, Knowledge([every], FIELD)).values()] == [
        "compatible",
        "incompatible",
    ]


def test_a_declared_requirement_that_a_cell_overrides_does_not_count() -> None:
    field = library(package("vllm", {"0.12.0": ["torch<2.9"]}), package("torch", {"2.9.0": ()}))
    declared = rule("declared", when={"vllm": ""}, conflict={"torch": ">=2.9"}, kind="pip-refuses")
    plain = cell({"vllm": "==0.12.0", "torch": "==2.9.0"})
    own = replace(plain, id="own", overrides=(Override("torch", "==2.9.*", because="It works."),))
    breaks = replace(declared, id="breaks", kind="breaks")
    assert [judge(Knowledge([declared]), facts_of_cell(each)).answer for each in (plain, own)] == [
        "incompatible",
        "compatible",
    ]
    assert [judge(Knowledge([breaks]), facts_of_cell(each)).answer for each in (plain, own)] == [
        "incompatible",
        "incompatible",
    ]
    answers = cell_answers([plain, own], Knowledge([declared], field))
    assert {name: found.answer for name, found in answers.items()} == {"x": "incompatible", "own": "compatible"}
