"""Shared memory: torch's data loaders, NCCL between processes and Ray's object store live in /dev/shm.

Sources: `docker run --shm-size` (64 MiB by default); PyTorch README, "Using pre-built images" (--ipc=host or
--shm-size); NCCL documentation, "Troubleshooting: Sharing Data".
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine

_ENOUGH = 1 << 30  # what NVIDIA's containers recommend for NCCL alone


def applies(image: Image, machine: Machine) -> bool:
    return image.has("torch", "ray") and machine.shm is not None


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    size = machine.shm or 0
    if size >= _ENOUGH:
        return
    yield Finding(
        "shm",
        "warning",
        f"/dev/shm has {size >> 20} MiB: data loader workers die with SIGBUS, NCCL and Ray fail",
        "`docker run --ipc=host` or --shm-size=16g (Kubernetes: an emptyDir with medium Memory at /dev/shm)",
    )
