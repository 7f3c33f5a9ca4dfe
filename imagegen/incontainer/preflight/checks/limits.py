"""What RDMA needs: NICs register the memory that they read, which must then be locked.

Source: NCCL documentation, "Troubleshooting: InfiniBand" (ulimit -l unlimited).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Finding, Image, Machine

_ENOUGH = 1 << 36  # bytes; NCCL itself asks for "unlimited"


def applies(image: Image, machine: Machine) -> bool:
    return image.cuda is not None and bool(_verbs(machine))


def check(image: Image, machine: Machine) -> Iterator[Finding]:
    verbs = _verbs(machine)
    if machine.memlock is not None and machine.memlock < _ENOUGH:
        yield Finding(
            "limits",
            "warning",
            f"there is RDMA ({len(verbs)} device{'s' if len(verbs) > 1 else ''}), and only {machine.memlock >> 10} KiB "
            'may be locked in memory: NCCL\'s InfiniBand transport fails with "ibv_reg_mr" errors',
            "`docker run --ulimit memlock=-1 --cap-add=IPC_LOCK`",
        )


def _verbs(machine: Machine) -> list[str]:
    return [name for name in machine.devices if name.startswith("infiniband/uverbs")]
