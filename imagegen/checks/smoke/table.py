"""The table of smoke checks: what each verifies, the packages and GPUs that it needs, and its time limit.

`make tables` writes docs/reference/smoke-checks.md from it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One row. `smoke.checks.<module>` holds it; `smoke.entry` runs it, in a process of its own."""

    name: str
    module: str
    verifies: str
    timeout: int  # seconds; a cold start of a large image reads gigabytes, so these are far above what is usual
    needs: frozenset[str] = frozenset()  # distributions and variables that the lock must have for the check to apply
    device: str = "cpu"  # "cuda": skipped where there is no GPU
    gpus: int = 1  # with "cuda": skipped where there are fewer
    without: frozenset[str] = frozenset()  # distributions with any of which the check does not apply
    by_name: bool = False  # runs only where it is named: it measures, and does not belong to a smoke test


_TORCH = frozenset({"torch"})
_MEGATRON = frozenset({"megatron-core", "torch"})
_TOOLKIT = frozenset({"CUDA_HOME", "torch"})  # nvcc from wheels or from the base
_TRITON = frozenset({"torch", "triton"})
_FLASHINFER = frozenset({"CUDA_HOME", "flashinfer-python", "torch"})
_FLASH = frozenset({"flash-attn", "torch"})
_CONV1D = frozenset({"causal-conv1d", "torch"})
_APEX = frozenset({"apex", "torch"})
_TE = frozenset({"torch", "transformer-engine-torch"})
_VERL = frozenset({"torch", "verl"})
_VLLM = frozenset({"torch", "transformers", "vllm"})
# TransferQueue: from 0.9 on, whose configuration the check knows, verl's trainer needs it.
_VERL_RUN = frozenset({"ray", "torch", "transferqueue", "transformers", "verl"})
_VERL_LORA = _VERL_RUN | {"peft"}
_NO_ADAPTER = frozenset(
    {"sglang"}
)  # verl 0.9.1 sends adapters as SGLang takes them from 0.5.17 on, and no image has that
_VERL_MEGATRON = _VERL_RUN | {"mbridge", "megatron-core", "transformer-engine"}  # without the last it makes no model
_OPENRLHF = frozenset({"deepspeed", "flash-attn", "openrlhf", "ray", "tensorboard", "torch", "transformers", "vllm"})
_PRIME = frozenset({"dion", "flash-attn", "prime-rl", "torch", "torchtitan", "transformers", "verifiers", "vllm"})
_TRL = frozenset({"torch", "transformers", "trl"})
_TRL_VLLM = _TRL | {"vllm"}
_OTHER_TRL = frozenset({"verl"})  # images of verl have TRL 0.29.1, whose vLLM is at most 0.12
_SB3 = frozenset({"sb3-contrib", "torch"})
_SGLANG = frozenset({"sglang", "torch", "transformers"})

CHECKS = (
    Check("imports", "imports", "every component's modules import, alone and together", 1800),
    Check("pip-check", "pip", "the installed metadata agree with each other, as the image's own pip sees them", 120),
    Check("versions", "versions", "exactly the locked distributions are installed", 120),
    Check("environment", "environment", "variables, interpreter and folders are what the lock and a user expect", 60),
    Check("loading", "loading", "every library and extension module loads, each in a process of its own", 1800),
    Check("cuda", "cuda", "the GPU responds, torch has code for it, and a product is right", 300, _TORCH, "cuda"),
    Check("toolkit", "toolkit", "nvcc compiles for the image's GPUs, and an extension loads", 300, _TOOLKIT),
    Check("toolkit-cuda", "toolkit", "the same for this GPU, and its kernel runs", 300, _TOOLKIT, "cuda"),
    Check("triton", "triton_jit", "Triton compiles for the image's GPUs", 300, _TRITON),
    Check("triton-cuda", "triton_jit", "Triton's kernel runs on this GPU", 300, _TRITON, "cuda"),
    Check("flashinfer", "flashinfer", "FlashInfer compiles a kernel for the image's GPUs", 600, _FLASHINFER),
    Check("flashinfer-cuda", "flashinfer", "FlashInfer's kernel for this GPU is right", 600, _FLASHINFER, "cuda"),
    Check("attention", "attention", "SDPA's forward and backward agree with a plain reference", 300, _TORCH),
    Check("attention-cuda", "attention", "the same with every backend that runs here", 300, _TORCH, "cuda"),
    Check("flash-attn-cuda", "flash_attn", "flash-attn's kernels agree with a plain reference", 300, _FLASH, "cuda"),
    Check("conv1d-cuda", "conv1d", "causal-conv1d's kernels agree with torch's convolution", 300, _CONV1D, "cuda"),
    Check("apex-cuda", "apex", "apex's compiled extensions agree with plain references", 300, _APEX, "cuda"),
    Check("te-cuda", "transformer_engine", "TransformerEngine's modules agree too, also in FP8", 300, _TE, "cuda"),
    Check("gloo", "collective", "two processes reduce, gather and train in step", 300, _TORCH),
    Check("nccl", "collective", "the same on up to two GPUs", 300, _TORCH, "cuda"),
    Check("fabric-cuda", "fabric", "NCCL over all GPUs: sums, transport, bandwidth", 300, _TORCH, "cuda"),
    Check("grpo", "grpo", "GRPO on a tiny language model really learns", 300, _TORCH),
    Check("grpo-cuda", "grpo", "the same in float32 and bfloat16", 300, _TORCH, "cuda"),
    Check("checkpoint", "checkpoint", "a saved and loaded run takes the same next step", 300, _TORCH),
    Check("verl-config", "verl_config", "verl's configurations compose, and their imports are there", 900, _VERL),
    Check("verl", "verl", "verl's advantages equal the reference's", 300, _VERL),
    Check("megatron", "megatron", "megatron-core's GPT learns, as far as it goes without a GPU", 300, _MEGATRON),
    Check("megatron-cuda", "megatron", "the same on the GPU, with nothing left out", 300, _MEGATRON, "cuda"),
    Check("trl-grpo", "trl_grpo", "TRL's GRPOTrainer learns, and its checkpoint resumes", 600, _TRL),
    Check("trl-grpo-cuda", "trl_grpo", "the same on the GPU, in bfloat16", 600, _TRL, "cuda"),
    Check(
        "trl-vllm-grpo", "trl_vllm", "TRL's GRPOTrainer learns with vLLM", 1800, _TRL_VLLM, "cuda", without=_OTHER_TRL
    ),
    Check("rollout-vllm", "rollout_engine", "GRPO learns with vLLM as its sampler", 1800, _VLLM, "cuda"),
    Check("rollout-sglang", "rollout_engine", "GRPO learns with SGLang as its sampler", 1800, _SGLANG, "cuda"),
    Check("verl-grpo", "verl_trainer", "verl's trainer learns, with FSDP", 1800, _VERL_RUN, "cuda"),
    Check("verl-gspo", "verl_trainer", "the same with GSPO", 1800, _VERL_RUN, "cuda"),
    Check("verl-lora", "verl_trainer", "the same with a LoRA adapter", 1800, _VERL_LORA, "cuda", without=_NO_ADAPTER),
    Check("verl-megatron", "verl_trainer", "the same with Megatron", 1800, _VERL_MEGATRON, "cuda"),
    Check("verl-grpo-2gpu", "verl_trainer", "the same with FSDP over two GPUs", 1800, _VERL_RUN, "cuda", 2),
    Check("verl-megatron-2gpu", "verl_trainer", "the same with Megatron on two", 1800, _VERL_MEGATRON, "cuda", 2),
    Check("openrlhf-grpo", "openrlhf_grpo", "OpenRLHF's trainer learns, with ZeRO-3", 1800, _OPENRLHF, "cuda"),
    Check("prime-rl-grpo", "prime_trainer", "prime-rl's trainer learns, with vLLM on its GPU", 1800, _PRIME, "cuda"),
    Check("prime-rl-grpo-2gpu", "prime_trainer", "the same with a GPU for each, over NCCL", 1800, _PRIME, "cuda", 2),
    Check("sb3", "sb3", "MaskablePPO learns, saves, loads and acts legally, also with SubprocVecEnv", 300, _SB3),
    Check("numerics", "numerics", "operations are as exact as was measured", 300, _TORCH, by_name=True),
    Check("numerics-cuda", "numerics", "the same on this GPU, and in the engine", 900, _TORCH, "cuda", by_name=True),
)


def applicable(parts: Collection[str], names: Collection[str] = ()) -> tuple[Check, ...]:
    """Return the checks for an image with these distributions (normalised names) and variables, in their order.

    Of the checks in `names`, or of all that need not be named.
    """
    return tuple(
        check
        for check in CHECKS
        if check.needs.issubset(parts)
        and check.without.isdisjoint(parts)
        and (check.name in names if names else not check.by_name)
    )
