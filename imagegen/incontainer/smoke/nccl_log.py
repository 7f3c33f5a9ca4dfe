"""NCCL's log read as data: the transports between ranks, the network, the paths between GPUs, and known problems.

Format: NCCL 2.28.9 with NCCL_DEBUG=INFO. src/debug.cc writes "HOST:PID:TID [DEVICE] NCCL INFO TEXT" and, for warnings,
"HOST:PID:TID [DEVICE] FILE:LINE NCCL WARN TEXT" behind a time in brackets. The texts are those of src/transport/{p2p,
shm,net,net_ib,net_socket,nvls}.cc, src/graph/{paths,topo}.cc, src/plugin, src/init.cc and src/misc; those of EFA are
aws-ofi-nccl's. Older forms since NCCL 2.4 are read too. A result does not depend on the order of lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
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
