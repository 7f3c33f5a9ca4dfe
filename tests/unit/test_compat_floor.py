"""The oldest driver that rules leave to a stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.compat import Fact, Facts, minimum_version
from imagegen.compat.rule import Rule
from imagegen.core.types import Gpu

# CUDA Compatibility, "Minor Version Compatibility": the floors of the major versions.
MAJORS = {">=13": ">=580", ">=12,<13": ">=525"}


def rule(name: str, when: Mapping[str, str], driver: str, **more: object) -> Rule:
    then = {"driver": driver}
    plain = Rule(name, when, then, {}, "because", "source", "2026-11-20", "error", "documented", "fix")
    return replace(plain, **more)  # type: ignore[arg-type]


def facts(cuda: str | None, **packages: str) -> Facts:
    known = {name: Fact.exactly(version) for name, version in packages.items()}
    versions = {"cuda": Fact.exactly(cuda)} if cuda else {}
    return Facts(known, versions, {} if cuda else {"cuda": "cpu"}, closed=True)


RULES = [rule(f"cuda{index}", {"cuda": when}, floor_) for index, (when, floor_) in enumerate(MAJORS.items())]


@pytest.mark.parametrize(("cuda", "expected"), [("13.0", "580"), ("12.8", "525"), ("11.8", None), (None, None)])
def test_the_floor_of_a_cuda_version(cuda: str | None, expected: str | None) -> None:
    assert minimum_version(RULES, facts(cuda), "driver") == expected


def test_the_highest_floor_counts_as_the_rule_writes_it() -> None:
    rules = [*RULES, rule("zstd", {"nvidia-cublas-cu12": ">=12.8"}, ">=550.54.14")]
    assert minimum_version(rules, facts("12.8", **{"nvidia-cublas-cu12": "12.8.4.1"}), "driver") == "550.54.14"
    assert minimum_version(rules, facts("12.8"), "driver") == "525", "what is not installed asks for nothing"


def test_a_range_that_a_rule_refuses_sets_a_floor_that_is_a_release() -> None:
    rules = [rule("ptx", {"nvidia-cuda-nvcc": ">=13.1"}, "", then={}, conflict={"driver": "<590"})]
    assert minimum_version(rules, facts("13.0", **{"nvidia-cuda-nvcc": "13.2.86"}), "driver") == "590"


def test_what_cannot_refuse_sets_no_floor() -> None:
    rules = [*RULES, rule("x", {"cuda": ">=13"}, ">=999", evidence="remembered")]
    rules.append(rule("y", {"cuda": ">=13"}, ">=999", severity="warning"))
    rules.append(rule("z", {"cuda": ">=13"}, "<=999"))
    assert minimum_version(rules, facts("13.0"), "driver") == "580"


def test_of_several_gpus_the_one_that_asks_for_least_decides() -> None:
    gpus = [Gpu("sm_90", "9.0", "hopper", ()), Gpu("sm_120", "12.0", "blackwell", ())]
    rules = [*RULES, rule("new", {"gpu": ">=12"}, ">=590")]
    assert minimum_version(rules, replace(facts("13.0"), gpus=gpus), "driver") == "580"
    assert minimum_version(rules, replace(facts("13.0"), gpus=gpus[1:]), "driver") == "590"
    assert minimum_version(rules[2:], replace(facts("13.0"), gpus=gpus), "driver") is None, "on the one, any will do"


@given(st.lists(st.tuples(st.integers(11, 14), st.integers(400, 700)), max_size=6), st.integers(11, 14))
def test_it_is_the_largest_of_those_that_apply(rows: list[tuple[int, int]], major: int) -> None:
    rules = [rule(f"r{n}", {"cuda": f"=={cuda}.*"}, f">={driver}") for n, (cuda, driver) in enumerate(rows)]
    applying = [driver for cuda, driver in rows if cuda == major]
    found = minimum_version(rules, facts(f"{major}.0"), "driver")
    assert (Version(found) if found else None) == (Version(str(max(applying))) if applying else None)
