"""GPU code and the GPUs that run it: NVIDIA's rules row by row, and properties that hold for any code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit.capability import compiled_by, driver_floor, releases, runs
from imagegen.audit.model import CodeTarget
from tests.support.gpu_targets import ISAS, TARGETS, targets

R580 = (9, 0)  # the PTX ISA of drivers of CUDA 13.0
CAPABILITIES = ["7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]


# what a container holds -> the capabilities that run it as it is, those that compile it; none of the others run it
ROWS = {
    "sm_80": ("8.0 8.6 8.7 8.9", ""),
    "sm_86": ("8.6 8.7 8.9", ""),
    "sm_90": ("9.0", ""),
    "sm_90a": ("9.0", ""),
    "sm_100": ("10.0 10.3", ""),
    "sm_100a": ("10.0", ""),
    "sm_100f": ("10.0 10.3", ""),
    "sm_103": ("10.3", ""),
    "sm_103a": ("10.3", ""),
    "sm_103f": ("10.3", ""),
    "sm_101a": ("11.0", ""),  # Thor, as CUDA 12 calls it: no relative of 10.3
    "sm_101": ("11.0", ""),
    "sm_110f": ("11.0", ""),
    "sm_120": ("12.0 12.1", ""),
    "sm_120a": ("12.0", ""),
    "sm_120f": ("12.0 12.1", ""),
    "sm_121a": ("12.1", ""),
    "compute_80@8.7": ("", "8.0 8.6 8.7 8.9 9.0 10.0 10.3 11.0 12.0 12.1"),
    "compute_90@9.0": ("", "9.0 10.0 10.3 11.0 12.0 12.1"),
    "compute_90@9.1": ("", ""),  # error 222 on a driver of CUDA 13.0
    "compute_80@9.2": ("", ""),
    "compute_100@9.0": ("", "10.0 10.3 11.0 12.0 12.1"),  # error 218 below
    "compute_90a@8.8": ("", "9.0"),
    "compute_100f@9.0": ("", "10.0 10.3"),
    "compute_120f@9.0": ("", "12.0 12.1"),
    "sm_80 sm_90a compute_90@9.0": ("8.0 8.6 8.7 8.9 9.0", "10.0 10.3 11.0 12.0 12.1"),
    "sm_80 compute_80@9.1": ("8.0 8.6 8.7 8.9", ""),
    "": ("", ""),
}


@pytest.mark.parametrize("code", ROWS)
def test_what_runs_where_with_a_driver_of_cuda_13_0(code: str) -> None:
    found = {each: runs(targets(code), each, R580) for each in CAPABILITIES}
    native, compiled = ([each for each in found if found[each] == kind] for kind in ("sass", "ptx"))
    assert (" ".join(native), " ".join(compiled)) == ROWS[code]


# Code as wheels on PyPI hold it, and what it does on sm_90, sm_100, sm_103, sm_120, sm_121 with a driver for all PTX.
WHEELS = {
    "torch 2.7.1": ("sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", "sass no no no no"),
    "torch 2.8.0": ("sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", "sass sass sass sass sass"),
    "vllm 0.24.0 _vllm_fa2_C": ("sm_80 compute_80@9.0", "ptx ptx ptx ptx ptx"),
    "vllm 0.24.0 _vllm_fa3_C": ("sm_90a", "sass no no no no"),
    "vllm 0.24.0 _flashmla_C": ("sm_90a sm_100f", "sass sass sass no no"),
    "sgl-kernel 0.3.21 common_ops": ("sm_80 sm_89 sm_90 sm_90a sm_100a sm_120a", "sass sass no sass no"),
    "sglang-kernel 0.4.2": ("sm_80 sm_89 sm_90 sm_90a sm_100a sm_103a sm_120a", "sass sass sass sass no"),
    "sgl-kernel flash_ops": ("sm_80 sm_86 sm_90a", "sass no no no no"),
    "xformers 0.0.35": ("sm_75 sm_80 sm_90a compute_80@8.7", "sass ptx ptx ptx ptx"),
    "torchao 0.13": ("sm_80 sm_86", "no no no no no"),
    "flashinfer-cubin": ("sm_100f sm_103a", "no sass sass no no"),
}


@pytest.mark.parametrize("wheel", WHEELS)
def test_the_code_of_wheels(wheel: str) -> None:
    code, expected = WHEELS[wheel]
    capabilities = ["9.0", "10.0", "10.3", "12.0", "12.1"]
    assert [runs(targets(code), each) for each in capabilities] == expected.split()


def test_the_driver_that_compiles_a_ptx() -> None:
    assert driver_floor((9, 0)) == ("13.0", "580.65.06")
    assert driver_floor((9, 1)) == ("13.1", "590.44.01")
    assert driver_floor((5, 0)) == ("10.0", "410.48")  # older than the table: its oldest release compiles it
    assert driver_floor((99, 0)) is None
    assert compiled_by("580") == compiled_by("580.159.04") == (9, 0)  # a branch may be all that is promised
    assert compiled_by("560.35.03") == (8, 5)  # CUDA 12.6 has the PTX of 12.5
    assert compiled_by("99999") is None is compiled_by("unknown")
    assert compiled_by("1") == (0, 0)  # older than all that are known: it compiles nothing, rather than everything
    assert runs(targets("compute_80@6.3"), "9.0", compiled_by("1")) == "no"


def test_the_releases_rise_together() -> None:
    for key in ("isa", "cuda", "driver"):
        values = [getattr(release, key) for release in releases()]
        numbers = [tuple(map(int, each.split("."))) if isinstance(each, str) else each for each in values]
        assert numbers == sorted(set(numbers)), key
    for release in releases():
        assert compiled_by(release.driver) == release.isa
        assert driver_floor(release.isa) == (release.cuda, release.driver)


GOODNESS = {"no": 0, "ptx": 1, "sass": 2}


@given(st.lists(TARGETS), TARGETS, st.sampled_from(CAPABILITIES), st.none() | ISAS)
def test_more_code_never_makes_it_worse(
    code: list[CodeTarget], more: CodeTarget, capability: str, isa: tuple[int, int]
) -> None:
    assert GOODNESS[runs([*code, more], capability, isa)] >= GOODNESS[runs(code, capability, isa)]


@given(st.lists(TARGETS), st.sampled_from(CAPABILITIES), ISAS, ISAS)
def test_a_newer_driver_never_makes_it_worse(
    code: list[CodeTarget], capability: str, one: tuple[int, int], two: tuple[int, int]
) -> None:
    older, newer = sorted([one, two])
    verdicts = [GOODNESS[runs(code, capability, isa)] for isa in (older, newer, None)]
    assert verdicts == sorted(verdicts)


@given(st.lists(TARGETS, min_size=1), st.sampled_from(CAPABILITIES), st.none() | ISAS)
def test_a_container_runs_as_well_as_its_best_code(
    code: list[CodeTarget], capability: str, isa: tuple[int, int]
) -> None:
    each = [runs([one], capability, isa) for one in code]
    assert runs(code, capability, isa) == max(each, key=GOODNESS.__getitem__)
