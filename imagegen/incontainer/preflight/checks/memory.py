"""GPUs that somebody uses already: an engine takes its share of all memory, not of what is free.

Source: vLLM, "Engine arguments" (gpu_memory_utilization, 0.9 by default until 0.2x, 0.92 since): it refuses to start
with "Free memory on device ... is less than desired GPU memory utilization".
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine

_SHARE = 0.9  # of a GPU's memory that an engine takes by default


def applies(image: Image, machine: Machine) -> bool:
    wanted = image.has("vllm", "sglang") or not image.packages
    return wanted and any(gpu.total and gpu.free is not None for gpu in machine.gpus)


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    for index, gpu in enumerate(machine.gpus):
        if gpu.total and gpu.free is not None and gpu.free < _SHARE * gpu.total:
            used = f"{(gpu.total - gpu.free) / 1024:.1f} of {gpu.total / 1024:.1f} GiB of GPU {index}"
            share = int(100 * gpu.free / gpu.total) / 100
            yield Finding(
                "memory",
                "note",
                f"{used} ({gpu.name}) are in use: an engine that wants {_SHARE} of it will not start",
                f"end what uses it (`nvidia-smi`), or give the engine less: gpu_memory_utilization (SGLang: "
                f"mem_fraction_static) below {share}; a trainer on the same GPU needs its part as well",
            )
