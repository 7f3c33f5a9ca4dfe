"""`imagegen doctor --fabric`: predictions from a host's facts, and the smoke check's result as findings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.checks.preflight.model import Gpu, Image, Machine
from imagegen.run.doctor import fabric as doctor_fabric
from imagegen.run.doctor.fabric import Host, Measured, examine_fabric

IMAGE = Image("hopper-vllm-cu130-py312", "13.0", ("9.0",), "580", {"torch": "2.11.0"})
ONE = Machine({}, place="host", driver="580.159.04", gpus=(Gpu("NVIDIA H200", "9.0"),))
TWO = ONE._replace(gpus=ONE.gpus * 2)

# `nvidia-smi topo -m`, in the form of NVIDIA/nccl issue 1264 (HGX H100, 2024-04) and nccl-tests issue 178.
NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-15\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t0-15\t0\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""
MIXED = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity
GPU0\t X \tNV12\tSYS\t0-31
GPU1\tNV12\t X \tPXB\t0-31
GPU2\tSYS\tPXB\t X \t32-63
"""


def lock_with(*debs: str) -> Any:
    return SimpleNamespace(debs=[SimpleNamespace(name=name) for name in debs])


@pytest.mark.parametrize(
    ("topology", "worst"),
    [
        (NVLINK, "NV18"),
        (MIXED, "SYS"),
        (NVLINK.replace("NV18", "PIX"), "PIX"),
        (NVLINK.replace("NV18", "PHB"), "PHB"),
        (MIXED.replace("SYS", "NV4").replace("PXB", "NV12"), "NV4"),
        ("", None),
        ("No devices were found\n", None),
    ],
)
def test_the_worst_path_between_gpus(topology: str, worst: str | None) -> None:
    assert doctor_fabric.worst_path(topology) == worst


@given(st.text(alphabet="GPU01NVXSYS \t\n", max_size=200))
def test_any_topology_can_be_read(topology: str) -> None:
    worst = doctor_fabric.worst_path(topology)
    assert worst is None or worst in topology


@pytest.mark.parametrize(("kind", "taken"), [("NV18", "P2P"), ("PXB", "P2P"), ("NODE", "shared memory")])
def test_what_nccl_takes_over_a_path(kind: str, taken: str) -> None:
    (found,) = doctor_fabric.links(NVLINK.replace("NV18", kind))
    assert taken in found.text


def statuses(host: Host, measured: Measured | None = None, image: Image = IMAGE, lock: Any = None) -> dict[str, str]:
    found = examine_fabric(image, lock, host, measured or Measured(reason="not in Docker"))
    assert all(line.isascii() and len(line) <= 80 for line in found.text().splitlines())
    return {row.name: row.status for row in found.rows}


def test_a_host_without_gpus_is_not_an_error() -> None:
    host = Host(Machine({}, place="host"))
    assert statuses(host) == {"gpus": "warning", "links": "-", "rdma": "note", "transport": "-"}
    assert examine_fabric(Image(), None, host, Measured()).passed


def test_one_gpu_has_no_links() -> None:
    assert statuses(Host(ONE)) == {"gpus": "note", "links": "-", "rdma": "note", "transport": "note"}
    assert statuses(Host(ONE), image=Image())["transport"] == "-"


def test_rdma_needs_libraries_in_the_image() -> None:
    host = Host(TWO, NVLINK, {"mlx5_0": "InfiniBand"}, ("uverbs0",))
    assert statuses(host, lock=lock_with("libc6"))["rdma"] == "warning"
    assert statuses(host, lock=lock_with("ibverbs-providers", "libibverbs1"))["rdma"] == "note"
    assert statuses(host, lock=lock_with())["rdma"] == "note"  # a registry's image: its packages are not known
    assert statuses(Host(TWO, NVLINK, {"mlx5_0": "InfiniBand"}))["rdma"] == "warning"  # nothing to open
    efa = Host(TWO, NVLINK, {"rdmap0s6": "EFA"}, ("uverbs0",))
    (found,) = [each for each in doctor_fabric.rdma(efa, IMAGE, lock_with("libc6")) if each.severity == "warning"]
    assert "aws-ofi-nccl" in found.text


DETAILS = {
    "nccl": {"transports": {"P2P/CUMEM/read": 48}, "networks": ["Socket"]},
    "bus_bandwidth": {"1048576": 20.5, "1073741824": 330.0},
    "link": {"name": "NVLink 4 x 18", "bandwidth": 450.0},
    "notes": [],
}


def test_what_was_measured_is_reported() -> None:
    host = Host(TWO, NVLINK)
    assert statuses(host, Measured("pass", "", DETAILS)) == {
        "gpus": "ok",
        "links": "note",
        "rdma": "note",
        "transport": "note",
    }
    (found,) = doctor_fabric.transport(Measured("pass", "", DETAILS))
    assert all(part in found.text for part in ("P2P/CUMEM/read", "330.0", "450.0", "Socket"))
    slow = {**DETAILS, "notes": [{"id": "p2p-off", "text": "slow", "fix": "unset NCCL_P2P_DISABLE"}]}
    assert statuses(host, Measured("pass", "", slow))["transport"] == "warning"
    failed = examine_fabric(IMAGE, None, host, Measured("fail", "sockets", slow))
    assert not failed.passed
    assert [each.severity for each in failed.findings if each.check == "transport"] == ["error", "warning"]
    assert statuses(host, Measured("crash", "killed by SIGSEGV"))["transport"] == "error"
    assert statuses(host, Measured("skip", "no NVIDIA GPU in this container"))["transport"] == "warning"


ODD = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(["nccl", "bus_bandwidth", "link", "notes"], ODD)))
def test_a_container_may_answer_anything(details: dict[str, Any]) -> None:
    assert list(doctor_fabric.transport(Measured("pass", "", details)))


def test_the_kinds_of_rdma_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagegen.checks.preflight.snapshot.gather", lambda *_, **__: TWO)
    files = {
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
        "sys/class/infiniband/rdmap0s6/device/vendor": "0x1d0f\n",
        "sys/class/infiniband/odd/node_type": "1\n",
        "dev/infiniband/uverbs0": "",
        "dev/infiniband/rdma_cm": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor_fabric.gather(tmp_path).topology == ""
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\n[ "$*" = "topo -m" ] && echo "GPU0 X"\n')
    smi.chmod(0o755)
    found = doctor_fabric.gather(tmp_path)
    assert found.topology == "GPU0 X\n"
    assert found.rdma == {"mlx5_0": "InfiniBand", "mlx5_1": "Ethernet", "odd": "unknown", "rdmap0s6": "EFA"}
    assert found.verbs == ("uverbs0",)
