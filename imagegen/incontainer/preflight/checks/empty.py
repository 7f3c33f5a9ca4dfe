"""Variables that are set and empty where programs read a number: int("") ends the run, a config does not validate."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine

# Name -> who reads it as a number. One `*` stands for anything.
NUMBERS = {
    "ARNOLD_*_NUM": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "ARNOLD_*_GPU": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "ARNOLD_*_PORT": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "ARNOLD_ID": "launch scripts on ByteDance's Arnold, such as verl's examples",
    "RANK": "torch.distributed, env:// initialization",
    "WORLD_SIZE": "torch.distributed, env:// initialization",
    "MASTER_PORT": "torch.distributed, env:// initialization",
    "LOCAL_RANK": "torchrun, environment variables",
    "LOCAL_WORLD_SIZE": "torchrun, environment variables",
    "GROUP_RANK": "torchrun, environment variables",
    "NODE_RANK": "launchers such as accelerate and Lightning",
    "NNODES": "launch scripts that hand it to torchrun --nnodes",
    "NPROC_PER_NODE": "launch scripts that hand it to torchrun --nproc-per-node",
    "*_NUM_THREADS": "OpenMP 6.0, section 4.1.3 (OMP_NUM_THREADS), and libraries with thread pools",
    "MAX_JOBS": "torch.utils.cpp_extension and the builds of vLLM and flash-attn",
    "VLLM_PORT": "vLLM, vllm/envs.py",
    "VLLM_DP_SIZE": "vLLM, vllm/envs.py",
    "VLLM_DP_RANK": "vLLM, vllm/envs.py",
    "NCCL_*_THRESHOLD": "NCCL, environment variables",
}


def check(_: Image, machine: Machine) -> Iterator[Finding]:
    for name, value in sorted(machine.environ.items()):
        reader = next((who for form, who in NUMBERS.items() if _fits(name, form)), None)
        if reader and not value.strip():
            yield Finding(
                "empty",
                "warning",
                f"{name} is set and empty, and is read as a number ({reader})",
                f"unset {name}, or give it a number",
            )


def _fits(name: str, form: str) -> bool:
    head, star, tail = form.partition("*")
    return name.startswith(head) and name.endswith(tail) and len(name) > len(form) - 1 if star else name == form
