"""Scans of packages that a question does not name, and that one of its packages requires and does not start without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.compat import (
    Explanation,
    MetadataCache,
    PlatformChoices,
    Question,
    ScanCache,
    demands_of,
    explain,
    suggest,
    table_of,
)
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.wheel_scans import WheelVerdict
from imagegen.core.types import Gpu
from tests.support.package_metadata import package, question
from tests.support.wheel_scans import scan, scans

T4, H100 = Gpu("sm_75", "7.5", "", ()), Gpu("sm_90", "9.0", "", ())
OLD, NEW = WheelVerdict(cuda=(12,), lacks={"7.5": "ops.so"}), WheelVerdict(cuda=(13,), lacks={"7.5": "ops.so"})
FITS = WheelVerdict(cuda=(12,))


def field() -> MetadataCache:
    known = [
        package("torch", {"2.8.0": ()}),
        package(
            "sglang",
            {
                "0.1": ["sgl-kernel==0.0.9"],  # which the index no longer has
                "0.2": ["sgl-kernel==0.1"],
                "0.4": ["sgl-kernel==0.2"],
                "0.5": ["sgl-kernel>=0.3", "xformers==1.0"],
                "0.6": ["sgl-kernel==0.4"],
            },
        ),
        package("trainer", {"1.0": ["sglang==0.4"]}),
        package("sgl-kernel", {"0.1": (), "0.2": (), "0.3": (), "0.4": ()}),
        package("xformers", {"1.0": ()}),
    ]
    verdicts = {"0.1": FITS, "0.2": OLD, "0.3": OLD, "0.4": NEW}
    kernel = scans(*(scan(each, verdict, name="sgl-kernel") for each, verdict in verdicts.items()), name="sgl-kernel")
    xformers = scans(scan("1.0", OLD, name="xformers"), name="xformers")
    found = {"sgl-kernel": kernel, "xformers": xformers}
    demands = {name: demands_of(each) for name, each in found.items()}
    return MetadataCache({each.name: table_of(each) for each in known}.get, ScanCache(demands.get))


def on(gpu: Gpu, **requested: str) -> Question:
    made = question(**requested)
    return Question(made.requested, replace(made.facts, gpus=(gpu,)))


def why(gpu: Gpu, **requested: str) -> Explanation:
    return explain(on(gpu, **requested), Knowledge((), field()))


@pytest.mark.parametrize("asked", [{"sglang": "==0.4"}, {"sglang": ">=0.4,<0.6"}, {"trainer": "==1.0"}])
def test_a_package_fails_with_the_one_that_it_pins(asked: dict[str, str]) -> None:
    found = why(T4, **asked)
    assert (found.answer, found.kind) == ("incompatible", "breaks")
    assert any("sgl-kernel" in rule.when for rule in found.conflicts[0].rules)
    assert why(H100, **asked).answer == "compatible"


def test_one_release_that_works_is_enough() -> None:
    assert why(T4, sglang="").answer == "compatible"
    assert why(T4, sglang="==0.2").answer == "compatible"


def test_a_package_goes_on_without_others_that_it_requires() -> None:
    found = why(T4, sglang="==0.5")
    assert {name for each in found.conflicts for rule in each.rules for name in rule.when} == {"sglang", "sgl-kernel"}


@pytest.mark.parametrize("stack", [{"cuda": "==13.0"}, {"torch": "==2.8.0+cu130"}])
def test_another_build_than_pypis_may_hold_the_code(stack: dict[str, str]) -> None:
    assert why(T4, sglang="==0.4", **stack).answer == "unknown"
    assert why(T4, sglang="==0.6", **stack).answer == "incompatible"
    assert why(H100, sglang="==0.4", **stack).answer == "compatible"


def test_no_release_is_proposed_that_requires_a_removed_one() -> None:
    near = suggest(on(T4, sglang="==0.4"), Knowledge((), field()), PlatformChoices())
    assert [each.changes for each in near] == [{"sglang": "==0.2"}]
