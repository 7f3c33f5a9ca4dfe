"""The checks of `imagegen doctor`: of a host, a container, a log, and the transports between GPUs.

A host and a container get the startup checks too (`checks.preflight`): on the host itself, and by a program that
is started in the container.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from imagegen.checks.preflight import formatting, report, snapshot
from imagegen.checks.preflight.gpu_checks import check_visible
from imagegen.checks.preflight.model import SEVERITIES, Finding, Image, Machine
from imagegen.checks.preflight.probe import probe
from imagegen.checks.preflight.program import answer, start
from imagegen.checks.preflight.table import CHECKS, Check, Row, always, examine, rows
from imagegen.compat import minimum_version
from imagegen.compat.models import Models
from imagegen.compat.rule import Rule
from imagegen.core.config import Settings
from imagegen.core.data import parse_json
from imagegen.core.errors import ContainerError, EngineError
from imagegen.core.progress import human
from imagegen.core.text import counted
from imagegen.engine import ContainerInfo, Engine, signal_name
from imagegen.engine.connection import INSTALL
from imagegen.image.layers.image import LABEL
from imagegen.image.layers.plan import ROOT
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.model import Lock
from imagegen.run.doctor_log import UNKNOWN, explain_log, explain_rules, unexplained
from imagegen.run.doctor_messages import SYMBOLS, explain_messages
from imagegen.spec.cell_facts import facts_of_cell
from imagegen.spec.model import Cell

HOST = "this host"


@dataclass(frozen=True)
class Diagnosis:
    """The findings about one host or container; `cell` is the cell that should run there, or that runs."""

    where: str  # HOST, or "container NAME"
    cell: str | None
    summary: str  # of the machine, in a line
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]  # worst first
    machine: Mapping[str, Any] = field(default_factory=dict)  # the facts, for JSON

    @property
    def passed(self) -> bool:
        """True if no finding prevents a run: warnings and notes do not."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """1 if a finding prevents a run, 2 if a part of a log has no explanation, else 0."""
        return 1 if not self.passed else 2 * any(finding.severity == UNKNOWN for finding in self.findings)

    def text(self) -> str:
        """Return the report for a terminal: one row per check; a failed check shows its finding with its fix below."""
        subject = f"{self.where}, for {self.cell}" if self.cell and self.where == HOST else self.where
        return formatting.ascii_only(f"{subject}: {self.summary}\n") + formatting.table(self.rows, self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON: {"where", "cell", "well", "checks", "findings", "machine"}."""
        return {
            "where": self.where,
            "cell": self.cell,
            "well": self.exit_code == 0,
            "checks": [row._asdict() for row in self.rows],
            "findings": [finding._asdict() for finding in self.findings],
            "machine": dict(self.machine),
        }


# A host on which images are built and run.

Info = dict[str, Any]  # `docker info`, as the engine's API returns it
_HOST = ("host",)
# Bytes on the disk for each byte of wheels: wheels and layers in the store, and the engine's own copy with the unpacked
# files. Measured on a set of 249 wheels: 4.1 GB of wheels, 4.05 GB of layers, 8.8 GB unpacked.
_IN_STORE, _IN_ENGINE = 2.0, 3.2
_LITTLE = 10_000_000_000  # free bytes; every GPU image needs more
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")


def facts_of(cell: Cell, lock: Lock | None, rules: Iterable[Rule]) -> Image:
    """Return the requirements of the cell's image, also if its lock is stale or missing.

    All environments work with the driver; the packages are from the default environment.
    """
    if lock:
        facts_by_part = [(part, facts_of_lock(part_lock, part)) for part, part_lock in lock.by_cell(cell)]
    else:
        facts_by_part = [
            (part, facts_of_cell(part)) for part in [environment.cell for environment in cell.environments] or [cell]
        ]
    drivers = [minimum_version(rules, facts, "driver") for part, facts in facts_by_part if part.cuda_version]
    driver = max(filter(None, drivers), key=Version, default=None)
    packages = {package.name: package.version for package in lock.packages} if lock else {}
    return Image(cell.id, cell.cuda_version, tuple(gpu.capability for gpu in cell.gpus), driver, packages)


def examine_host(settings: Settings, image: Image, lock: Lock | None = None) -> Diagnosis:
    """Check this host for an image, or for any GPU image if `image` has no cell. `lock` gives the image's size."""
    machine = snapshot.gather(os.environ, snapshot.begin(os.environ), place="host")
    if machine.driver or machine.gpus:
        machine = machine._replace(probe=probe(os.environ))
    info, refusal = _engine(settings)
    wheels = sum(wheel.file.estimate for wheel in lock.distinct_wheels) if lock else 0
    checks = (
        Check("engine", lambda *_: refusal, "a Docker engine responds and is suitable", always, _HOST),
        Check(
            "toolkit",
            lambda *_: toolkit(info or {}),
            "containers can be given GPUs",
            lambda _, machine: info is not None and bool(machine.gpus or machine.driver),
            _HOST,
        ),
        Check(
            "disk",
            lambda *_: disk(free_space(settings.store, info), wheels),
            "the disks have space for the image",
            always,
            _HOST,
        ),
        *CHECKS,
    )
    findings = tuple(examine(image, machine, checks))
    shown = tuple(rows(image, machine, findings, checks))
    facts = report.as_dict(image, machine, findings)["machine"]
    return Diagnosis(HOST, image.cell or None, formatting.hardware(Image(), machine), shown, findings, facts)


def toolkit(info: Info, which: Callable[[str], object] = shutil.which) -> Iterator[Finding]:
    """Yield a finding if the engine has nothing that mounts the driver into containers.

    Source: NVIDIA Container Toolkit, "Installing the toolkit": a runtime called nvidia, the hook that `--gpus` calls,
    or a CDI specification (`docker info`, DiscoveredDevices).
    """
    devices = info.get("DiscoveredDevices") or []
    if any("nvidia" in name for name in info.get("Runtimes") or {}) or any(
        "nvidia" in str(device) for device in devices
    ):
        return
    if not any(which(program) for program in _HOOKS):
        yield Finding(
            "toolkit",
            "warning",
            "there is a GPU, and no NVIDIA Container Toolkit: `docker run --gpus all` will fail",
            "install nvidia-container-toolkit, then `nvidia-ctk runtime configure --runtime=docker` and restart Docker",
        )


def free_space(store: Path, info: Info | None) -> list[tuple[str, int, int]]:
    """Return path, device and free bytes of the store and, if it is on this machine, of the engine's directory."""
    root = (info or {}).get("DockerRootDir")
    directories = [
        (store, next(parent for parent in (store, *store.parents) if os.path.isdir(parent)))
    ]  # Path.is_dir may raise
    directories += [(Path(root), Path(root))] if root and os.path.isdir(root) else []
    return [(str(path), directory.stat().st_dev, shutil.disk_usage(directory).free) for path, directory in directories]


def disk(disks: list[tuple[str, int, int]], wheels: int) -> Iterator[Finding]:
    """Yield findings about the disk space for an image with `wheels` bytes of wheels.

    `disks` has path, device and free bytes of directories; requirements of directories on one device are added up.
    """
    required: dict[int, float] = {}
    for (_, device, _), factor in zip(disks, (_IN_STORE, _IN_ENGINE), strict=False):
        required[device] = required.get(device, 0) + factor * wheels
    for device, need in required.items():
        path, free = next((path, free) for path, other, free in disks if other == device)
        if free < max(need, _LITTLE):
            text = f"{human(free)} are free where {path} is"
            text += f", and the image takes about {human(int(need))} there" if need > free else ""
            yield Finding("disk", "warning", text, "`imagegen store gc` and `docker image prune` free space")


def _engine(settings: Settings) -> tuple[Info | None, list[Finding]]:
    """Return the engine's report about itself, or a finding if there is no engine."""
    try:
        with Engine.connect(settings) as engine:
            return engine.info(), []
    except EngineError as error:
        text = error.summary
        return None, [Finding("engine", "error", " ".join(text.split()), error.fix or INSTALL)]


# A container that runs or has ended. Its checks, its exit code and the known messages of its log are examined.

_ENDING = "it runs, or has ended well"
_LOG = "its log has no message that is known to mean something else"
_SYMBOLS = "it calls no symbol of torch undefined"


def examine_container(engine: Engine, name: str, models: Models, rules: Sequence[Rule] = ()) -> Diagnosis:
    """Examine a container by name or id; `models` and `rules` explain messages in its log.

    Raises EngineError if there is no such container, or if the engine fails.
    """
    container = engine.inspect_container(name)
    findings = [
        *check_ending(container),
        *explain_messages(container.log, models),
        *explain_rules(container.log, rules),
    ]
    if unknown := unexplained(container.log, models, rules):
        text = f"no explanation is known for {unknown}"
        findings.append(Finding("log", UNKNOWN, text, f"`docker logs {name} 2>&1 | imagegen doctor --log -`"))
    inner: list[Row] = []
    machine: dict[str, Any] = {}
    if container.running:
        try:
            inside = parse(engine.exec_in(name, [f"{ROOT}/doctor", "--json"]))
        except ContainerError:  # the container has ended just now
            inside = None
        if inside is None:
            text = f"{ROOT}/doctor does not answer in the container, so only its state and log were checked"
            findings.append(Finding("ending", "note", text, "images that imagegen builds have one"))
        else:
            inner_findings, inner, machine = inside
            findings += inner_findings
    findings.sort(key=lambda finding: (*SEVERITIES, UNKNOWN).index(finding.severity))
    cell = container.labels.get(f"{LABEL}cell")
    rows = (_row("ending", _ENDING, findings), _row("log", _LOG, findings), *inner)
    return Diagnosis(f"container {name}", cell, _summary(container, cell), rows, tuple(findings), machine)


def examine_log(
    where: str,
    log: str,
    models: Models,
    machine: str | None = None,
    *,
    rules: Sequence[Rule] = (),
    packages: Collection[str] = (),
) -> Diagnosis:
    """Explain a log or a traceback called `where`; the other parameters are as in `explain_log`."""
    findings = explain_log(log, models, rules, packages, machine)
    rows = (_row("log", _LOG, findings), _row(SYMBOLS, _SYMBOLS, findings))
    number = sum(finding.severity != UNKNOWN for finding in findings)
    summary = counted(number, "explanation") + ("" if number == len(findings) else ", and a part without explanation")
    return Diagnosis(where, None, summary if number else "not known", rows, tuple(findings))


def check_ending(container: ContainerInfo) -> list[Finding]:
    """Return findings about the exit code. A run that ended well without output is not verified."""
    if container.running:
        return []
    killed = signal_name(container.exit_code)
    if container.out_of_memory:
        text = "the kernel killed it: out of memory"
        return [Finding("ending", "error", text, "give it more (`docker run --memory`), or let the run take less")]
    if killed:
        text = f"it was killed by {killed} (exit code {container.exit_code})"
        fix = "`docker logs` shows its last output; PYTHONFAULTHANDLER=1 shows where Python was"
        return [Finding("ending", "note" if killed in ("SIGTERM", "SIGINT") else "error", text, fix)]
    if container.exit_code:
        text = f"it ended with exit code {container.exit_code}"
        return [Finding("ending", "error", text, "`docker logs` shows its last output")]
    if not container.log.strip():
        text = "it ended with exit code 0 and no output: nothing shows that it did anything"
        return [
            Finding("ending", "warning", text, "check that the command is the intended one, and waits for its work")
        ]
    return []


def _row(name: str, sees: str, findings: Iterable[Finding]) -> Row:
    return Row(name, next((finding.severity for finding in findings if finding.check == name), "ok"), sees)


def parse(stdout: bytes) -> tuple[list[Finding], list[Row], dict[str, Any]] | None:
    """Return findings, rows and facts of the doctor in a container; None for other output, which is not trusted."""
    try:
        answer = parse_json(stdout)
        findings = [Finding(*(str(fields[key]) for key in Finding._fields)) for fields in answer["findings"]]
        rows = [Row(*(str(fields[key]) for key in Row._fields)) for fields in answer["checks"]]
        machine = dict(answer["machine"])
    except (ValueError, TypeError, KeyError):
        return None
    return (findings, rows, machine) if all(finding.severity in SEVERITIES for finding in findings) else None


def _summary(container: ContainerInfo, cell: str | None) -> str:
    state = "running" if container.running else f"ended, exit code {container.exit_code}"
    return f"{cell or 'an image that imagegen did not build'}, {state}"


# The transports between GPUs of this host and of other hosts: predicted from the host, measured in a container.
#
# Sources: NCCL 2.28.9, src/graph/paths.cc (P2P within NVLink and PCIe switches, PATH_PXB, else shared memory); legend
# of `nvidia-smi topo -m`; sysfs of the kernel's RDMA subsystem (Documentation/ABI/stable/sysfs-class-infiniband).

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
