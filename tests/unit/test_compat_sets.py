"""The sets that projects ship and that resolvers gave: no rule refuses one, unless it is said here why."""

from __future__ import annotations

import pytest

from imagegen.compat import Facts
from imagegen.compat.evaluate import evaluate
from tests.support.matrix_samples import shipped_matrix
from tests.support.rule_cases import stack

RULES = shipped_matrix().rules
NO_ADAPTERS = "verl-0.9.1-sglang-lora"  # of SGLang before 0.5.17
NO_TE = "verl-megatron-transformer-engine"  # these sets train with FSDP, or list no TransformerEngine
ARCHES = {"TORCH_CUDA_ARCH_LIST": "8.0 9.0 10.0 10.3 12.0 12.1"}

# name -> (what is installed, the rules that warn of it, each because it is right)
SETS: dict[str, tuple[Facts, tuple[str, ...]]] = {
    # verl's Dockerfiles of 2026 on nvidia/cuda:13.0.2-devel-ubuntu24.04; flash-attn compiled, mbridge from a commit
    "verl vLLM 2026": (
        stack(
            "13.0",
            gpu="10.0",
            python="3.12",
            glibc="2.39",
            env=ARCHES,
            torch="2.11.0",
            flash_attn="2.8.3",
            vllm="0.24.0",
            megatron_core="0.18.0",
            megatron_bridge="0.5.2",
            mbridge="0.15.1+git641a5a0",
            transformer_engine="2.16.1",
            transformer_engine_cu13="2.16.1",
            transformer_engine_torch="2.16.1",
            apex="0.1",
            verl="0.9.1",
            transformers="5.9.0",
            ray="2.55.1",
            tensordict="0.10.0",
            numpy="2.3.5",
            flashinfer_python="0.6.12",
            flashinfer_cubin="0.6.12",
            nvidia_cudnn_cu13="9.19.0.56",
            nvidia_nccl_cu13="2.28.9",
        ),
        (),
    ),
    "verl SGLang 2026": (
        stack(
            "13.0",
            gpu="9.0",
            python="3.12",
            glibc="2.39",
            torch="2.11.0",
            flash_attn="2.8.3",
            sglang="0.5.12",
            sglang_kernel="0.4.2.post2",
            flashinfer_python="0.6.11.post1",
            flashinfer_cubin="0.6.11.post1",
            megatron_core="0.18.0",
            transformer_engine="2.16.1",
            apex="0.1",
            verl="0.9.1",
            transformers="5.6.0",
        ),
        (NO_ADAPTERS,),
    ),
    # on NGC pytorch 25.03, its torch removed
    "verl 0.6": (
        stack(
            "12.8",
            python="3.12",
            glibc="2.39",
            torch="2.8.0+cu128",
            flash_attn="2.7.4.post1",
            sglang="0.5.2",
            sgl_kernel="0.3.9.post2",
            megatron_core="0.13.0",
            mbridge="0.15.1",
            transformer_engine="2.2.1",
            verl="0.6.1",
            numpy="1.26.4",
            transformers="4.56.1",
            flashinfer_python="0.3.1",
        ),
        (),
    ),
    # CUDA 12.4.1, old C++ ABI; the wheel's own metadata says 2.7.4.post1, its file name has the label
    "verl 0.4": (
        stack(
            "12.4",
            python="3.10",
            glibc="2.35",
            torch="2.6.0",
            flash_attn="2.7.4.post1+cu12torch2.6cxx11abiFALSE",
            vllm="0.8.5.post1",
            megatron_core="0.12.2",
            transformer_engine="2.2.1",
            verl="0.4.1",
            transformers="4.51.3",
            numpy="1.26.4",
            flashinfer_python="0.2.2.post1",
        ),
        ("te-2.2-flash-attn-label",),
    ),
    # runs on 1x H100 and 2x A6000; torch's and vllm's builds for CUDA 12
    "prime-rl": (
        stack(
            "12.8",
            gpu="8.6",
            python="3.12",
            glibc="2.39",
            env={"TORCH_CUDA_ARCH_LIST": "8.6"},
            torch="2.11.0+cu128",
            flash_attn="2.8.3+cu128torch2.11",
            vllm="0.26.0+cu129",
            transformers="5.6.2",
            numpy="2.3.5",
            nvidia_cudnn_cu12="9.15.1.9",
            flashinfer_python="0.6.14",
        ),
        (),
    ),
    # resolved from PyPI on 2026-11-20: what verl 0.9.1 itself pins
    "verified, Python 3.11": (
        stack(
            "13.0",
            gpu="12.0",
            env=ARCHES,
            base="debian12",
            torch="2.11.0",
            vllm="0.24.0",
            megatron_core="0.16.1",
            mbridge="0.15.1",
            verl="0.9.1",
            transformers="5.10.4",
            numpy="2.3.5",
            ray="2.60.0",
            tensordict="0.10.0",
            flashinfer_python="0.6.12",
            flashinfer_cubin="0.6.12",
            nvidia_cudnn_cu13="9.19.0.56",
            nvidia_nccl_cu13="2.28.9",
            opencv_python_headless="4.13.0.92",
            hydra_core="1.3.2",
        ),
        (NO_TE,),
    ),
    "SGLang, Python 3.11": (
        stack(
            "13.0",
            base="debian12",
            torch="2.11.0",
            sglang="0.5.14",
            sglang_kernel="0.4.4",
            transformers="5.8.1",
            verl="0.9.1",
            megatron_core="0.16.1",
            flashinfer_python="0.6.12",
            flash_attn_4="4.0.0b15",
        ),
        (NO_ADAPTERS, NO_TE),
    ),
    "newest, Python 3.11": (
        stack(
            "13.0",
            base="debian12",
            torch="2.13.0",
            vllm="0.31.0",
            megatron_core="0.16.1",
            mbridge="0.15.1",
            verl="0.9.1",
            transformers="5.10.4",
            numpy="2.3.5",
            ray="2.60.0",
            flashinfer_python="0.7.0.post1",
            nvidia_cudnn_cu13="9.20.0.48",
            nvidia_nccl_cu13="2.29.7",
        ),
        (NO_TE,),
    ),
    "vllm 0.12, Python 3.12": (
        stack(
            "12.8",
            python="3.12",
            torch="2.9.0",
            vllm="0.12.0",
            megatron_core="0.15.0",
            mbridge="0.15.1",
            verl="0.8.0",
            numpy="1.26.4",
            opencv_python_headless="4.11.0.86",
            transformers="4.57.6",
            flashinfer_python="0.5.3",
            nvidia_cudnn_cu12="9.10.2.21",
        ),
        ("torch-290-conv3d", NO_TE),
    ),
    "sglang 0.5.5, Python 3.12": (
        stack(
            "12.8",
            python="3.12",
            torch="2.8.0",
            sglang="0.5.5",
            sgl_kernel="0.3.16.post5",
            megatron_core="0.15.0",
            verl="0.6.1",
            numpy="1.26.4",
        ),
        (NO_TE,),
    ),
}

# Sets that resolve, and do not work.
BROKEN: dict[str, tuple[Facts, tuple[str, ...]]] = {
    # on 3.12 the newest resolution took megatron-core 0.19.2 beside PyPI's mbridge
    "newest, Python 3.12": (
        stack("13.0", python="3.12", torch="2.13.0", vllm="0.31.0", megatron_core="0.19.2", mbridge="0.15.1"),
        ("mbridge-megatron-core",),
    ),
    # verl[vllm,mcore]==0.8.0 resolved to vllm 0.11.0 and the newest transformers, which nothing forbade
    "verl 0.8.0's extra": (
        stack("12.8", python="3.12", torch="2.8.0", vllm="0.11.0", verl="0.8.0", transformers="5.23.0"),
        ("vllm-transformers5",),
    ),
    # left alone, the resolver took the newest compiler
    "verified, without a rule for the toolkit": (
        stack("13.0", torch="2.11.0", nvidia_cuda_nvcc="13.2.86", nvidia_nvvm="13.2.86", nvidia_cuda_runtime="13.0.96"),
        ("toolkit-wheels-13.0",),
    ),
}


def blamed(facts: Facts) -> dict[str, str]:
    """Rule -> the severity of the conflict that it is in."""
    return {rule.id: each.severity for each in evaluate(RULES, facts).conflicts for rule in each.rules}


@pytest.mark.parametrize("name", SETS)
def test_what_projects_ship_is_compatible(name: str) -> None:
    facts, warnings = SETS[name]
    assert blamed(facts) == dict.fromkeys(warnings, "warning")
    assert evaluate(RULES, facts).answer == "compatible"


@pytest.mark.parametrize("name", BROKEN)
def test_what_only_resolves_is_refused_with_the_reason(name: str) -> None:
    facts, rules = BROKEN[name]
    refused = {rule for rule, severity in blamed(facts).items() if severity == "error"}
    assert refused == set(rules)
