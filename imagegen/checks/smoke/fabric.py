"""The transports that NCCL took between the GPUs of one host: read from its log, and judged.

Faults are transports and speeds below what the hardware has.

Format of the log: NCCL 2.28.9 with NCCL_DEBUG=INFO. src/debug.cc writes "HOST:PID:TID [DEVICE] NCCL INFO TEXT" and, for
warnings, "HOST:PID:TID [DEVICE] FILE:LINE NCCL WARN TEXT" behind a time in brackets. The texts are those of
src/transport/{p2p,shm,net,net_ib,net_socket,nvls}.cc, src/graph/{paths,topo}.cc, src/plugin, src/init.cc and src/misc;
those of EFA are aws-ofi-nccl's. Older forms since NCCL 2.4 are read too. The order of lines changes no result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A message that says why NCCL does without something. `sign` is searched in each line."""

    id: str
    sign: str
    text: str
    fix: str
    rdma: bool = False  # it matters only where the host has RDMA devices: NCCL writes it on every other host too


DEVICES = "`docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1`"

PROBLEMS = (
    Problem(
        "libibverbs",
        r"Failed to open libibverbs\.so",
        "libibverbs.so.1 cannot be loaded: NCCL's InfiniBand and RoCE transport is off",
        "install libibverbs1 and ibverbs-providers in the image (`packages:` of a matrix)",
        rdma=True,
    ),
    Problem(
        "rdma-device",
        r"NET/IB : No device found",
        "NCCL finds no InfiniBand or RoCE device",
        f"pass the devices to the container: {DEVICES}; see that NCCL_IB_HCA names one that is up",
        rdma=True,
    ),
    Problem(
        "rdma-open",
        r"NET/IB : Unable to (?:open|query) (?:device|port_num)",
        "an InfiniBand or RoCE device is visible and cannot be opened",
        f"pass the devices to the container: {DEVICES}",
    ),
    Problem(
        "efa",
        r"NET/OFI .*(?:fi_getinfo\(\) call failed|[Cc]ould not find any optimal provider|Unable to find a protocol)",
        "the plugin for EFA is loaded and libfabric finds no EFA device",
        f"pass the devices to the container: {DEVICES}; `fi_info -p efa` shows those that libfabric finds",
    ),
    Problem(
        "plugin",
        r"NET/Plugin\s?: lib\S+: (?:\S+\.so\S*: cannot open|\S+: (?:undefined symbol|wrong ELF|version ))"
        r"|Failed to initialize (?:any )?NET plugin|External network plugin .* is unsupported",
        "a network plugin is there and cannot be used",
        "a plugin that is built for this NCCL and whose libraries (libfabric, libibverbs) are in the image",
    ),
    Problem(
        "memlock",
        r"Call to ibv_(?:reg_mr|create_cq|create_qp)\w* failed",
        "an InfiniBand call fails for want of memory that may be locked",
        "`docker run --ulimit memlock=-1 --cap-add IPC_LOCK`; `ulimit -l` must say unlimited",
    ),
    Problem(
        "gdr",
        r"GPU Direct RDMA Disabled for (?:GPU|HCA)",
        "GPUDirect RDMA is off for a GPU and a network device: data passes through the CPU's memory",
        "load nvidia-peermem on the host, or use a kernel and a driver with DMA-BUF; `nvidia-smi topo -m` must show "
        "PIX or PXB between GPU and NIC",
        rdma=True,
    ),
    Problem(
        "p2p-broken",
        r"P2P is disabled between (?:NVLINK )?connected GPUs|Could not enable P2P between|peer query failed between",
        "the driver does not allow a GPU to access another GPU's memory",
        "switch ACS and IOMMU off for the GPUs' PCIe bridges; GeForce boards have no P2P",
    ),
    Problem(
        "shm-full",
        r"(?:failed to extend|Error while creating shared memory segment|posix_fallocate failed).*",
        "NCCL cannot allocate shared memory in /dev/shm",
        "`docker run --ipc=host` or --shm-size=16g (Kubernetes: an emptyDir with medium Memory at /dev/shm)",
    ),
    Problem(
        "nvls",
        r"Failed to bind NVLink SHARP",
        "NVLink multicast (NVLS) is supported and cannot be used",
        "see that the fabric manager runs on the host, or set NCCL_NVLS_ENABLE=0",
    ),
    Problem(
        "interface",
        r"no socket interface found|NET/Socket : no interface found|No IP interface found",
        "NCCL finds no network interface",
        "unset NCCL_SOCKET_IFNAME, or set it to an interface of this host or container (`ip -br address`)",
    ),
    Problem(
        "connect",
        r"[Cc]onnect to \S+ (?:failed :|returned .*exceeded error retry)",
        "a rank cannot connect to another one",
        "set NCCL_SOCKET_IFNAME to an interface that reaches the other hosts, and open all ports between them",
    ),
    Problem(
        "versions",
        r"Mismatched NCCL version detected",
        "ranks have different versions of NCCL",
        "run the same image on all hosts",
    ),
    Problem(
        "same-gpu",
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        "one process for each GPU: torch.cuda.set_device(LOCAL_RANK)",
    ),
)


@dataclass(frozen=True)
class Log:
    """Facts of the logs of any number of ranks. Tuples are sorted and have no duplicates."""

    versions: tuple[str, ...]  # of NCCL: "2.28.9"
    transports: dict[str, int]  # "P2P/CUMEM" -> number of lines about channels that use it
    networks: tuple[str, ...]  # "Socket", "IB", "Libfabric"
    plugins: tuple[str, ...]  # external network plugins that are loaded
    interfaces: tuple[str, ...]  # of the socket transport: "eth0"
    rdma: tuple[str, ...]  # devices of the InfiniBand transport and providers of libfabric: "mlx5_0:1/IB", "efa"
    environment: dict[str, str]  # NCCL_* -> value, as far as NCCL reports them
    paths: tuple[tuple[str, float], ...]  # between GPUs: kind ("NVL", "PIX", "SYS"), NCCL's estimate in GB/s
    nvls: bool  # whether NVLink multicast is used
    problems: tuple[str, ...]  # ids of PROBLEMS

    def uses(self, *prefixes: str) -> bool:
        """Return whether a transport's name begins with one of `prefixes`."""
        return any(name.startswith(prefixes) for name in self.transports)


# Field of Log, what comes before its values in a line, and the form of each value.
_FIELDS = (
    ("versions", "NCCL version ", re.compile(r"^([\d.]+)\+")),
    ("networks", "NCCL INFO Using network ", re.compile(r"^(\S.*?)\s*$")),
    ("plugins", "Successfully loaded external network plugin ", re.compile(r"^(\S+)")),
    ("plugins", "Loaded net plugin ", re.compile(r"^(\S.*?) \(v")),
    ("interfaces", "NET/Socket : Using", re.compile(r"\[\d+\]([^\s:]+):")),
    ("rdma", "NET/IB : Using", re.compile(r"\[\d+\](\S+:\d+/\S+)")),
    ("rdma", "NET/OFI Selected Provider is ", re.compile(r"^(\w+)")),
    ("rdma", "NET/OFI Selected provider is ", re.compile(r"^(\w+)")),
)
_CHANNEL = re.compile(r"NCCL INFO (?:Channel|Ring) \d+\S* *: .*?\bvia (\S.*)")
_NET = re.compile(r"NET/(.+?)/\d+(?:\(\d+\))?(/GDRDMA)?(?:\(PCI\))?(?:/Shared)?\s*$")
_ENVIRONMENT = re.compile(r"\b(NCCL_\w+) set (?:by environment )?to (\S.*?)\.?\s*$")
_PATH = re.compile(r"\bGPU/\S+ \(\d+/(\d{1,9}(?:\.\d{1,9})?)/([A-Z0-9]+)\)")
_BETWEEN = re.compile(r"NCCL INFO GPU/\S+ :")
_NVLS = re.compile(r"\b[1-9]\d* nvls channels")
_SIGNS = tuple((problem.id, re.compile(problem.sign)) for problem in PROBLEMS)


def parse(lines: Iterable[str]) -> Log:
    """Read the lines of one or more logs, in any order. Lines of other forms are ignored; no text raises an error."""
    found: dict[str, set[str]] = {field: set() for field, _, _ in _FIELDS}
    transports: Counter[str] = Counter()
    environment: dict[str, str] = {}
    paths: set[tuple[str, float]] = set()
    problems: set[str] = set()
    nvls = False
    for line in lines:
        for field, before, form in _FIELDS:
            found[field].update(form.findall(line.partition(before)[2]))
        if channel := _CHANNEL.search(line):
            transports[_transport(channel[1])] += 1
        if variable := _ENVIRONMENT.search(line):
            # Ranks may differ: the larger value, so that the order of lines is of no account.
            environment[variable[1]] = max(variable[2], environment.get(variable[1], ""))
        if _BETWEEN.search(line):
            paths |= {(kind, float(width)) for width, kind in _PATH.findall(line) if kind != "LOC"}
        nvls |= bool(_NVLS.search(line))
        problems |= {name for name, sign in _SIGNS if sign.search(line)}
    return Log(
        **{field: tuple(sorted(values)) for field, values in found.items()},
        transports=dict(sorted(transports.items())),
        environment=dict(sorted(environment.items())),
        paths=tuple(sorted(paths)),
        nvls=nvls,
        problems=tuple(problem.id for problem in PROBLEMS if problem.id in problems),
    )


def last_warning(lines: Iterable[str]) -> str:
    """Return the text of the last line that is a warning; "" if there is none."""
    texts = [line.partition("NCCL WARN ")[2].strip() for line in lines if "NCCL WARN " in line]
    return texts[-1] if texts else ""


def _transport(text: str) -> str:
    """Return a transport's name without the numbers of devices: "NET/IB/3(5)/GDRDMA" is "NET/IB/GDRDMA"."""
    text = text.strip()
    if text == "direct shared memory":  # until NCCL 2.11
        return "SHM"
    if net := _NET.match(text):
        return f"NET/{net[1]}{net[2] or ''}"
    if text.startswith("P2P/indirect"):
        return "P2P/indirect"
    return text[:80]


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
