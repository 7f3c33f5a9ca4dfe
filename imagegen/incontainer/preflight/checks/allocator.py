"""torch's expandable segments against memory pools.

Source: vLLM, vllm/device_allocator/cumem.py: "Expandable segments are not compatible with memory pool" (pytorch issue
147851); sleep mode, which trainers use to hand the GPU over, needs that pool.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine

_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def applies(image: Image, machine: Machine) -> bool:
    return image.has("vllm", "sglang")


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    for name in _NAMES:
        value = machine.environ.get(name, "")
        if "expandable_segments:true" in value.replace(" ", "").lower():
            yield Finding(
                "allocator",
                "warning",
                f"{name}={value} does not go with the engine's memory pool: sleeping and waking up fail "
                'with "Expandable segments are not compatible with memory pool"',
                f"unset {name} in processes that hold the engine (trainers of their own may keep it)",
            )
