"""Judge the transports that NCCL took between the GPUs of one host: faults, and speeds below the hardware's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smoke.nccl_log import DEVICES, PROBLEMS, Log

LOW = 0.5  # of the links' bandwidth; NCCL's ring reaches 0.82 of NVLink 4 on eight H100 (nccl-tests issue 309, 2025-05)
SHM_BYTES = 1 << 30  # NVIDIA's containers recommend this for NCCL


@dataclass(frozen=True)
class NvLink:
    """A generation of NVLink: bandwidths of one link in one direction, in GB/s.

    `estimate` is NCCL's (src/graph/topo.h of 2.28.9): its path's bandwidth is the number of links times this.
    """

    name: str
    capabilities: tuple[int, ...]  # ten times major plus minor
    estimate: float
    bandwidth: float
    source: str
    date: str


NVLINKS = (
    NvLink("NVLink 2", (70, 72), 20.0, 25.0, "NVIDIA V100 architecture whitepaper: 300 GB/s over 6 links", "2017-08"),
    NvLink("NVLink 3", (80,), 20.0, 25.0, "NVIDIA A100 architecture whitepaper: 600 GB/s over 12 links", "2020-05"),
    NvLink("NVLink 3", (86,), 12.0, 14.0625, "NVIDIA GA102 whitepaper: 112.5 GB/s over 4 links", "2020-09"),
    NvLink("NVLink 4", (90,), 20.6, 25.0, "NVIDIA H100 architecture whitepaper: 900 GB/s over 18 links", "2022-03"),
    NvLink("NVLink 5", (100, 103), 40.1, 50.0, "NVIDIA Blackwell architecture brief: 1.8 TB/s, 18 links", "2024-03"),
)
# NCCL counts a lane of PCIe 3.0 as 0.75 GB/s (kvDictPciGen), 12 for x16; the bus has 16 (PCI-SIG: 8 GT/s, x16), and the
# later generations twice as much each: 64 GB/s for PCIe 5.0 x16.
PCIE_FACTOR = 16 / 12
_PCIE = ("PIX", "PXB", "PHB")


@dataclass(frozen=True)
class Note:
    """Something worth knowing: an id, a sentence, and what helps."""

    id: str
    text: str
    fix: str


@dataclass(frozen=True)
class Surroundings:
    """The resources of the container, beside the log.

    `rdma` are the host's RDMA devices (/sys/class/infiniband), `verbs` those that the container may open
    (/dev/infiniband/uverbs*). `shm` and `memlock` are bytes; None: no /dev/shm; no limit.
    """

    environment: Mapping[str, str]  # NCCL_* as the user has set them
    rdma: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    shm: int | None = None
    memlock: int | None = None


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth, in GB/s, of an all-reduce of `size` bytes over `ranks` ranks.

    Formula: nccl-tests, doc/PERFORMANCE.md: size / time * 2 * (n - 1) / n, comparable with one link's bandwidth in one
    direction.
    """
    return size / seconds / 1e9 * 2 * (ranks - 1) / ranks


def link(log: Log, capability: int) -> tuple[str, float] | None:
    """Return name and bandwidth (GB/s, one direction) of the slowest path between two GPUs; None where it is unknown.

    `capability` is the GPU's compute capability, ten times major plus minor.
    """
    if not log.paths:
        return None
    kind, estimate = min(log.paths, key=lambda path: path[1])
    if kind in ("NVL", "NVB"):
        row = next((row for row in NVLINKS if capability in row.capabilities), None)
        if row is None:
            return None
        links = round(estimate / row.estimate)
        return f"{row.name} x {links}", links * row.bandwidth
    if kind in _PCIE:
        return f"PCIe ({kind})", estimate * PCIE_FACTOR
    return (f"between CPUs ({kind})", estimate) if kind == "SYS" else None


def wrong(log: Log, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what is certainly wrong between GPUs of one host: id -> sentence. `environment` is the user's NCCL_*."""
    if log.uses("NET/Socket") and not _is_on(environment, "NCCL_SHM_DISABLE"):
        causes = "; ".join(problem.text for problem in PROBLEMS if problem.id in log.problems and not problem.rdma)
        text = "NCCL takes sockets between GPUs of one host, and NCCL_SHM_DISABLE does not ask for it"
        return {"sockets": f"{text}: {causes}" if causes else text}
    return {}


def notes(log: Log, around: Surroundings, expected: tuple[str, float] | None, measured: float | None) -> list[Note]:
    """Return what is slower than it need be, with cause and fix.

    Args:
        log: of all ranks.
        around: the container.
        expected: name and GB/s of the slowest path between two GPUs.
        measured: bus bandwidth of the largest message, GB/s; None where nothing was measured.
    """
    found = [
        Note(problem.id, problem.text, problem.fix)
        for problem in PROBLEMS
        if problem.id in log.problems and (around.rdma or not problem.rdma)
    ]
    if not log.uses("P2P") and log.uses("SHM", "NET") and expected and not expected[0].startswith("between"):
        variables = [name for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL") if name in around.environment]
        taken = "sockets" if log.uses("NET/Socket") else "shared memory" if log.uses("SHM") else "the network"
        cause = f"{' and '.join(variables)} in the environment" if variables else "the driver allows no P2P"
        fix = f"unset {' and '.join(variables)}" if variables else "see `nvidia-smi topo -p2p r`"
        if variables or expected[0].startswith("NVLink"):
            found.append(Note("p2p-off", f"{expected[0]} connects the GPUs, and NCCL takes {taken}: {cause}", fix))
    if around.rdma and not around.verbs:
        text = f"the host has RDMA ({', '.join(around.rdma)}), and the container has no /dev/infiniband"
        found.append(Note("verbs", f"{text}: between hosts NCCL takes sockets", DEVICES))
    if around.verbs and around.memlock is not None:
        text = f"{around.memlock >> 10} KiB may be locked in memory, and RDMA registers all of its buffers"
        found.append(Note("memlock-limit", text, "`docker run --ulimit memlock=-1 --cap-add IPC_LOCK`"))
    if around.shm is not None and around.shm < SHM_BYTES:
        text = f"/dev/shm has {around.shm >> 20} MiB: NCCL's and torch's shared memory may not fit"  # noqa: S108
        found.append(Note("shm-small", text, "`docker run --ipc=host` or --shm-size=16g"))
    if expected and measured is not None and measured < LOW * expected[1]:
        text = f"all-reduce reaches {measured:.1f} GB/s of the {expected[1]:.0f} GB/s that {expected[0]} has"
        fix = "see the other notes; else `nvidia-smi nvlink -s` and `nvidia-smi topo -m` for links that are down"
        found.append(Note("bandwidth", text, fix))
    return found


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "0").strip() not in ("", "0")
