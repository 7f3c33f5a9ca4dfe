"""Declared requirements among the packages of a question, and a base image whose torch they exclude."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.compat import (
    Fact,
    MetadataCache,
    Question,
    ScanCache,
    explain,
    replace_base_torch,
    suggest,
    table_of,
)
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.question import required_by_others
from imagegen.compat.scans import Demand, PackageDemands, WheelDemands
from imagegen.compat.suggestions import PlatformChoices
from imagegen.compat.systems import NgcImage
from tests.support.package_metadata import library, package, question, rule, with_facts

X86 = "platform_machine == 'x86_64'"
FIELD = library(
    package("torch", {"2.7.1": (), "2.8.0": ()}),
    package("vllm", {"0.10": ["torch==2.7.1", f"xformers==0.31; {X86}"], "0.11": ["torch==2.8.0"]}),
    package("trainer", {"1.0": ["torch>=2.6"]}, extras={"vllm": ("vllm==0.10; extra == 'vllm'",)}),
    package("xformers", {"0.31": (), "0.32": ()}),
    package("flash-attn", {"2.8.0": (), "2.8.3": ()}),
    package("trl", {"0.24": (), "0.29": ()}),
    package("transformers", {"5.2": (), "5.5": ()}),
    package("unsloth", {"2026.4.6": (), "2026.4.7": ()}),
)
DIRECT = rule("direct", {"xformers": "==0.31"}, conflict={"flash-attn": ">=2.8.3"}, direct=True)
UNLESS = rule("unless", {"trl": "<0.29"}, conflict={"transformers": ">=5.3"}, unless={"unsloth": ">=2026.4.7"})
IMAGE = NgcImage("25.02", "2.7.0a0+ecf3bae40a", "12.8", "ubuntu24.04")


def based(about: Question) -> Question:
    """The question on a base of NVIDIA with its own torch, as it is parsed."""
    built = replace(Fact.requested(f"=={IMAGE.torch}"), built=True)
    packages = {"torch": built, **about.facts.packages}
    facts = replace(about.facts, packages=packages, versions={"cuda": Fact.exactly(IMAGE.cuda), **about.facts.versions})
    return replace(about, facts=facts, image=IMAGE)


@pytest.mark.parametrize(
    ("asked", "extras", "required"),
    [
        ({"vllm": "==0.10", "xformers": "==0.31", "flash_attn": "==2.8.3"}, {}, {"xformers"}),
        ({"vllm": "==0.11", "xformers": "==0.31"}, {}, set()),
        ({"vllm": "", "xformers": "==0.31", "torch": ""}, {}, {"xformers", "torch"}),
        ({"trainer": "==1.0", "vllm": "==0.10"}, {}, set()),
        ({"trainer": "==1.0", "vllm": "==0.10"}, {"trainer": frozenset({"vllm"})}, {"vllm"}),
    ],
)
def test_packages_that_another_one_requires(
    asked: dict[str, str], extras: dict[str, frozenset[str]], required: set[str]
) -> None:
    assert required_by_others(with_facts(question(**asked), extras=extras), FIELD) == required


def test_a_requirement_for_another_machine_is_none() -> None:
    asked = question(vllm="==0.10", xformers="==0.31")
    arm64 = replace(asked, facts=replace(asked.facts, names={"platform": "linux/arm64"}))
    assert not required_by_others(arm64, FIELD)


def test_a_direct_rule_only_warns_where_another_package_brings_the_one_that_is_named() -> None:
    alone = question(xformers="==0.31", flash_attn="==2.8.3")
    assert explain(alone, Knowledge([DIRECT], FIELD)).answer == "incompatible"
    brought = explain(question(vllm="==0.10", xformers="==0.31", flash_attn="==2.8.3"), Knowledge([DIRECT], FIELD))
    assert (brought.answer, [each.severity for each in brought.conflicts]) == ("compatible", ["warning"])


@pytest.mark.parametrize(
    ("unsloth", "answer"),
    [({}, "incompatible"), ({"unsloth": "==2026.4.6"}, "incompatible"), ({"unsloth": ""}, "compatible")],
)
def test_a_package_that_repairs_a_combination_counts_where_it_is_named(unsloth: dict[str, str], answer: str) -> None:
    assert explain(question(trl="==0.24", transformers="==5.5", **unsloth), Knowledge([UNLESS], FIELD)).answer == answer


@pytest.mark.parametrize(
    ("unsloth", "severity"),
    [
        ({}, "error"),
        ({"unsloth": "==2026.4.6"}, "error"),
        ({"unsloth": "==2026.4.7"}, "warning"),
        ({"unsloth": ""}, "error"),
    ],
)
def test_a_rule_only_warns_with_a_package_that_does_not_reach_the_fault(unsloth: dict[str, str], severity: str) -> None:
    apart = replace(UNLESS, unless={}, warns_with={"unsloth": ">=2026.4.7"})
    found = explain(question(trl="==0.24", transformers="==5.5", **unsloth), Knowledge([apart], FIELD))
    assert [conflict.severity for conflict in found.conflicts] == [severity]


def test_a_release_that_repairs_it_is_proposed() -> None:
    asked = question(trl="==0.24", transformers="==5.5", unsloth="==2026.4.6")
    found = suggest(asked, Knowledge([UNLESS], FIELD), PlatformChoices())
    assert {"unsloth": "==2026.4.7"} in [each.changes for each in found]


@pytest.mark.parametrize("asked", [{"vllm": "==0.10"}, {"trainer": "==1.0", "vllm": "==0.11"}])
def test_pip_replaces_the_torch_of_a_base_that_a_package_excludes(asked: dict[str, str]) -> None:
    replaced = replace_base_torch(based(question(**asked)), FIELD)
    assert not {"torch"} & replaced.facts.packages.keys()
    assert "cuda" not in replaced.facts.versions
    assert len(replaced.assumed) == 1


def test_proposals_keep_a_base_with_its_torch() -> None:
    requested = based(question(trl="==0.24", transformers="==5.5"))
    needs = rule("needs", {"trl": "==0.29"}, {"torch": ">=2.8"})
    near = suggest(requested, Knowledge([UNLESS, needs], FIELD), PlatformChoices())
    assert [suggestion.changes for suggestion in near] == [{"transformers": "==5.2"}]


def test_a_rule_about_a_wheel_replaces_no_torch_of_a_base() -> None:
    demand = Demand("torch", (), (("torch", "==2.9.*"),), (), "is compiled for torch 2.9", "", "Use torch 2.9")
    wheel = WheelDemands("0.24", "trl-0.24-cp312-abi3-linux_x86_64.whl", "0" * 64, "2026-11-24", (), (demand,))
    scans = ScanCache({"trl": PackageDemands("trl", {"0.24": wheel})}.get)
    trl = package("trl", {"0.24": ()})
    asked = question(trl="==0.24")
    asked = based(replace(asked, facts=replace(asked.facts, packages={"trl": Fact.requested("==0.24", "")})))
    found = MetadataCache({"trl": table_of(trl)}.get, scans)
    assert replace_base_torch(asked, found) == asked
    assert explain(asked, Knowledge((), found)).answer == "incompatible"


def test_the_torch_of_a_base_stays_where_it_satisfies_what_is_declared() -> None:
    asked = based(question(trainer="==1.0"))
    assert replace_base_torch(asked, FIELD) == asked


def test_a_torch_that_is_named_replaces_that_of_the_base_and_a_cuda_that_is_named_stays() -> None:
    replaced = replace_base_torch(based(question(torch="==2.7.1")), FIELD).facts
    assert (replaced.packages["torch"].text, "cuda" in replaced.versions) == ("2.7.1", False)
    assert "cuda" in replace_base_torch(based(question(torch="==2.7.1", cuda="==12.8")), FIELD).facts.versions
    assert "cuda" in replace_base_torch(based(question(torch="")), FIELD).facts.versions
    assert not replace_base_torch(question(torch="==2.7.1"), FIELD).assumed


def test_what_an_index_has_says_nothing_of_a_torch_that_comes_from_none() -> None:
    index = rule("index", {"cuda": "==12.8"}, {"torch": ">=2.7,<2.12"}, kind="pip-refuses")
    assert explain(based(question(trainer="==1.0")), Knowledge([index], FIELD)).answer == "compatible"
    assert explain(question(torch="==2.6.0", cuda="==12.8"), Knowledge([index], FIELD)).answer == "incompatible"
