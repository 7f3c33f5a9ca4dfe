"""Minimum versions of NVIDIA's libraries, from what releases of torch require of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.compat import Explanation, Question, complete_names, explain
from imagegen.compat.knowledge import Knowledge
from imagegen.compat.torch_pins import library_rules
from tests.support.package_metadata import library, package, question

DNN, NCCL, BLAS = "nvidia-cudnn-cu12", "nvidia-nccl-cu12", "nvidia-cublas-cu12"
RELEASES = {
    "2.7.0": [f"{DNN}==9.5.1.17", f"{NCCL}==2.26.2", f"{BLAS}==12.6.4.1"],
    "2.8.0": [f"{DNN}==9.10.2.21; platform_system == 'Linux'", f"{NCCL}==2.27.3", f"{BLAS}==12.8.4.1"],
    "2.9.0": [f"{DNN}==9.10.2.21", f"{NCCL}==2.27.3", f"{BLAS}==12.8.4.1"],
    "2.11.0": ["nvidia-cudnn-cu13==9.19.0.56", "nvidia-cublas<=13.1.1.3,>=13.1.0.3"],
}
CUDA = {"2.7.0": "12.6", "2.8.0": "12.8", "2.9.0": "12.8", "2.11.0": "13.0"}
FIELD = library(
    replace(
        (torch := package("torch", RELEASES)),
        releases={version: replace(each, cuda=CUDA[version]) for version, each in torch.releases.items()},
    ),
    package("vllm", {"0.11": ["torch==2.8.0"], "0.24": ["torch==2.11.0"]}),
    package(DNN, {"9.1.0.70": (), "9.5.1.17": (), "9.10.0.56": (), "9.10.2.21": (), "9.16.0.29": ()}),
    package("nvidia-cudnn-cu13", {"9.16.0.29": (), "9.19.0.56": ()}),
    package(NCCL, {"2.20.5": (), "2.27.3": (), "2.28.9": ()}),
    package(BLAS, {"12.6.4.1": (), "12.8.4.1": (), "12.9.1.4": ()}),
)


def why(**requested: str) -> Explanation:
    return explain(question(**requested), Knowledge((), FIELD))


@pytest.mark.parametrize(
    ("torch", "cudnn", "answer"),
    [
        ("2.8.0", "9.5.1.17", "incompatible"),
        ("2.8.0", "9.10.0.56", "compatible"),  # torch compares the minor version
        ("2.8.0", "9.16.0.29", "compatible"),
        ("2.7.0", "9.5.1.17", "compatible"),
        ("2.7.0", "9.1.0.70", "incompatible"),
        ("2.11.0+cu126", "9.5.1.17", "incompatible"),  # at least what 2.9 requires for CUDA 12
        ("2.11.0+cu126", "9.10.2.21", "compatible"),
    ],
)
def test_torch_refuses_an_older_cudnn(torch: str, cudnn: str, answer: str) -> None:
    found = why(torch=f"=={torch}", nvidia_cudnn_cu12=f"=={cudnn}")
    assert found.answer == answer
    assert [each.kind for each in found.conflicts] == (["breaks"] if answer == "incompatible" else [])


def test_a_minimum_counts_where_a_package_brings_torch() -> None:
    assert why(vllm="==0.11", nvidia_cudnn_cu12="==9.5.1.17").answer == "incompatible"
    assert why(vllm="==0.11", nvidia_cudnn_cu12="==9.10.2.21").answer == "compatible"


def test_an_older_nccl_is_against_what_torch_declares() -> None:
    refused = why(torch="==2.8.0+cu128", nvidia_nccl_cu12="==2.20.5")
    assert (refused.answer, refused.kind, refused.conflicts[0].override) == (
        "incompatible", "pip-refuses", "nvidia-nccl-cu12==2.20.5",
    )  # fmt: skip
    assert why(torch="==2.8.0+cu128", nvidia_nccl_cu12="==2.28.9").answer == "compatible"


def test_the_minimum_of_cublas_is_that_of_its_cuda_release() -> None:
    assert why(torch="==2.9.0", cuda="==12.8", nvidia_cublas_cu12="==12.6.4.1").answer == "incompatible"
    assert why(torch="==2.9.0", cuda="==12.6", nvidia_cublas_cu12="==12.6.4.1").answer == "compatible"
    assert why(torch="==2.9.0", cuda="==12.9", nvidia_cublas_cu12="==12.9.1.4").answer == "compatible"


def test_a_torch_of_ones_own_has_libraries_of_its_own() -> None:
    asked = question(torch="==2.8.0", nvidia_cudnn_cu12="==9.5.1.17")
    built = {**asked.facts.packages, "torch": replace(asked.facts.packages["torch"], built=True)}
    own = replace(asked, facts=replace(asked.facts, packages=built))
    assert explain(own, Knowledge((), FIELD)).answer == "compatible"


def test_releases_with_one_minimum_share_a_rule_and_it_names_the_first_that_requires_it() -> None:
    known = FIELD.of("torch")
    assert known
    rules = list(library_rules(known.all, {DNN, "nvidia-cublas", "numpy"}, "2026-11-24"))
    assert [(each.when["torch"], dict(each.then)) for each in rules] == [
        ("==2.11.0", {"nvidia-cublas": ">=13.1.0.3"}),
        ("==2.7.0", {DNN: ">=9.5"}),
        (">=2.8.0,<=2.11.0", {DNN: ">=9.10"}),
    ]
    assert rules[-1].id == f"torch-pin:2.8.0:{DNN}"
    assert "torch 2.8.0" in rules[-1].source


def named(name: str, **requested: str) -> list[str]:
    """Return the packages in question where one is named in short, as "cudnn"."""
    asked = replace(question(**requested, **{name: "==9.10.*"}), short=frozenset({name}))
    return list(complete_names(asked, FIELD).requested)


@pytest.mark.parametrize(
    ("stack", "major"),
    [
        ({"torch": "==2.9.0"}, 12),
        ({"torch": "==2.11.0"}, 13),
        ({"torch": "==2.11.0+cu126"}, 12),
        ({"cuda": "==12.8"}, 12),
        ({"cuda": "==13.0", "torch": "==2.9.0"}, 13),
        ({"vllm": "==0.11"}, 12),
        ({"vllm": "==0.24"}, 13),
        ({}, 13),
    ],
)
def test_a_short_name_means_the_package_for_the_cuda_of_the_stack(stack: dict[str, str], major: int) -> None:
    assert named("nvidia-cudnn-cu13", **stack)[-1] == f"nvidia-cudnn-cu{major}"


def test_a_package_that_is_named_in_full_stays() -> None:
    asked: Question = question(torch="==2.9.0", nvidia_cudnn_cu13="==9.19.0.56")
    assert complete_names(asked, FIELD) == asked
    both = question(torch="==2.9.0", nvidia_cudnn_cu12="", nvidia_cudnn_cu13="")
    both = replace(both, short=frozenset({"nvidia-cudnn-cu13"}))
    assert complete_names(both, FIELD).requested == both.requested
