"""The transports between GPUs of this host and of other hosts: predicted from the host, measured in a container.

Sources: NCCL 2.28.9, src/graph/paths.cc (P2P within NVLink and PCIe switches, PATH_PXB, else shared memory); legend
of `nvidia-smi topo -m`; sysfs of the kernel's RDMA subsystem (Documentation/ABI/stable/sysfs-class-infiniband).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagegen.checks.preflight import formatting, snapshot
from imagegen.checks.preflight.gpu_checks import check_visible
from imagegen.checks.preflight.model import SEVERITIES, Finding, Image, Machine
from imagegen.checks.preflight.program import answer, start
from imagegen.checks.preflight.table import Row
from imagegen.lock.model import Lock
from imagegen.run.doctor.diagnosis import HOST, Diagnosis

AMAZON = "0x1d0f"  # PCI vendor of EFA devices
_TIMEOUT = 20  # seconds for nvidia-smi
_FLAGS = "`docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 --network host`"
_ON_TOP = "install them on top of the image (docs/how-to/build-on-top.md)"
# The kinds of paths in `nvidia-smi topo -m`, best first; NVLink is "NV" with the number of links.
_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True)
class Host:
    """Facts of this host that decide on transports.

    `topology` is the output of `nvidia-smi topo -m`, `rdma` maps RDMA devices to their kinds ("InfiniBand", "Ethernet"
    for RoCE, "EFA"), `verbs` are the names in /dev/infiniband that programs open.
    """

    machine: Machine
    topology: str = ""
    rdma: Mapping[str, str] = field(default_factory=dict)
    verbs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The result of the smoke check `fabric-cuda`. If `status` is empty, the check did not run, for `reason`."""

    status: str = ""
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def gather(root: Path = Path("/")) -> Host:
    """Return the facts of this host; those that cannot be read are left out."""
    machine = snapshot.gather(os.environ, snapshot.begin(os.environ), place="host")
    try:
        topology = (answer(start(["nvidia-smi", "topo", "-m"], os.environ), _TIMEOUT) or (1, ""))[1]
    except OSError:
        topology = ""
    devices = sorted((root / "sys/class/infiniband").glob("*"))
    verbs = sorted(path.name for path in (root / "dev/infiniband").glob("uverbs*"))
    return Host(machine, topology, {device.name: _kind(device) for device in devices}, tuple(verbs))


def examine_fabric(image: Image, lock: Lock | None, host: Host, measured: Measured) -> Diagnosis:
    """Return the transports of NCCL between GPUs of this host and between hosts, for an image, and what it lacks.

    Args:
        image: the image of a cell, or an empty one.
        lock: the lock of the cell, if any.
        host: the facts that `gather` returned.
        measured: the result of the smoke check in a container of the image.
    """
    machine = host.machine
    several = len(machine.gpus) > 1
    table: tuple[tuple[str, str, bool, Callable[[], Iterable[Finding]]], ...] = (
        ("gpus", "several GPUs respond", True, lambda: gpus(machine)),
        ("links", "NVLink or a PCIe switch connects each pair of GPUs", several, lambda: links(host.topology)),
        ("rdma", "RDMA between hosts", True, lambda: rdma(host, image, lock)),
        ("transport", "NCCL, in a container", bool(machine.gpus and image.cell), lambda: transport(measured)),
    )
    findings = [finding for _, _, applies, look in table if applies for finding in look()]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    worst = {finding.check: finding.severity for finding in reversed(findings)}
    rows = tuple(Row(name, worst.get(name, "ok") if applies else "-", sees) for name, sees, applies, _ in table)
    facts = {
        "gpus": len(machine.gpus),
        "topology": host.topology,
        "rdma": dict(host.rdma),
        "verbs": list(host.verbs),
        "measured": dict(measured.details),
    }
    return Diagnosis(HOST, image.cell or None, formatting.hardware(Image(), machine), rows, tuple(findings), facts)


def gpus(machine: Machine) -> Iterator[Finding]:
    if not machine.gpus:
        for finding in check_visible(Image(), machine):
            yield finding._replace(check="gpus")
    elif len(machine.gpus) == 1:
        yield Finding("gpus", "note", "there is only one GPU: NCCL connects it to GPUs of other hosts", "")


def links(topology: str) -> Iterator[Finding]:
    """Yield a finding about NCCL's default transport over the worst path between two GPUs."""
    worst = worst_path(topology)
    if worst is None:
        text = "`nvidia-smi topo -m` does not say how the GPUs are connected"
        yield Finding(
            "links", "note", text, "name a cell whose image is in Docker, and the transport is measured in a container"
        )
    elif worst.startswith("NV"):
        yield Finding("links", "note", f"{worst[2:]} NVLinks connect each pair of GPUs or more: NCCL takes P2P", "")
    elif worst in ("PIX", "PXB"):
        yield Finding("links", "note", f"PCIe switches connect the GPUs ({worst}): NCCL takes P2P over PCIe", "")
    else:
        text = f"a pair of GPUs is connected through a CPU ({worst}): NCCL takes shared memory (/dev/shm)"
        fix = "NCCL_P2P_LEVEL=SYS allows P2P there if the mainboard supports it; give containers --shm-size=16g"
        yield Finding("links", "note", text, fix)


def worst_path(topology: str) -> str | None:
    """Return the worst kind of path between two GPUs, "NV18" or "SYS", in `nvidia-smi topo -m`, or None."""
    rows = [re.sub(r"\x1b\[[\d;]*m", "", line).split() for line in topology.splitlines()]
    head = next((row for row in rows if row[:1] == ["GPU0"] and "X" not in row), [])
    count = sum(1 for name in head if re.fullmatch(r"GPU\d+", name))
    cells = {cell for row in rows if row[:1] and re.fullmatch(r"GPU\d+", row[0]) for cell in row[1 : count + 1]}
    kinds = [cell for cell in cells if cell in _PATHS or re.fullmatch(r"NV\d+", cell)]
    return max(kinds, key=_distance, default=None)


def _distance(kind: str) -> tuple[int, int]:
    return (1 + _PATHS.index(kind), 0) if kind in _PATHS else (0, -int(kind[2:]))


def rdma(host: Host, image: Image, lock: Lock | None) -> Iterator[Finding]:
    """Yield findings about what is missing between hosts, on this host or in the image."""
    if not host.rdma:
        yield Finding("rdma", "note", "this host has no RDMA device: between hosts NCCL takes sockets", "")
        return
    devices = ", ".join(f"{name} ({kind})" for name, kind in host.rdma.items())
    if not host.verbs:
        text = f"there are RDMA devices ({devices}), and no /dev/infiniband/uverbs*"
        yield Finding("rdma", "warning", text, "`modprobe ib_uverbs` (package rdma-core)")
    yield Finding("rdma", "note", f"containers need the RDMA devices ({devices}) to be passed", _FLAGS)
    if image.cuda is None or lock is None:
        return
    if "EFA" in host.rdma.values():
        text = f"{image.cell} has no libfabric and no aws-ofi-nccl: with EFA, NCCL takes sockets between hosts"
        yield Finding("rdma", "warning", text, f"{_ON_TOP}: Amazon's EFA installer has both")
    debs = {deb.name for deb in lock.debs}
    missing = [name for name in ("libibverbs1", "ibverbs-providers") if name not in debs]
    if missing and debs and set(host.rdma.values()) - {"EFA"}:
        text = f"{image.cell} has no {' and no '.join(missing)}: NCCL takes sockets between hosts"
        yield Finding("rdma", "warning", text, "`packages:` of a matrix adds Debian packages (docs/how-to/bases.md)")


def transport(measured: Measured) -> Iterator[Finding]:
    """Turn the smoke check's result into findings. The container is not trusted to keep to the form."""
    if measured.status not in ("pass", "skip"):
        severity = "error" if measured.status else "note"
        fix = "see `imagegen test CELL --json`" if measured.status else ""
        yield Finding("transport", severity, measured.reason, fix)
    elif measured.status == "skip":
        text = f"a container of the image was started, and the check was skipped: {measured.reason}"
        yield Finding("transport", "warning", text, "give containers the GPUs: NVIDIA Container Toolkit")
    else:
        yield Finding("transport", "note", _measured_summary(measured.details), "")
    for note in _list(measured.details.get("notes")):
        if isinstance(note, dict):
            yield Finding("transport", "warning", str(note.get("text", "")), str(note.get("fix", "")))


def _measured_summary(details: Mapping[str, Any]) -> str:
    nccl = _dict(details.get("nccl"))
    transports = ", ".join(map(str, _dict(nccl.get("transports")))) or "no transport between GPUs"
    networks = ", ".join(map(str, _list(nccl.get("networks")))) or "none"
    speeds, link = _dict(details.get("bus_bandwidth")), _dict(details.get("link"))
    speed = f"; all-reduce reaches {list(speeds.values())[-1]} GB/s" if speeds else ""
    of = f" of the {link.get('bandwidth')} GB/s of {link.get('name')}" if speeds and link else ""
    return f"NCCL takes {transports}; network between hosts: {networks}{speed}{of}"


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind(device: Path) -> str:
    """Return "EFA", or the link layer of the device's first port: "InfiniBand" or "Ethernet"."""
    if _read(device / "device/vendor") == AMAZON:
        return "EFA"
    return _read(device / "ports/1/link_layer") or "unknown"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
