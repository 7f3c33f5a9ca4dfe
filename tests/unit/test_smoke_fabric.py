"""NCCL's logs as data, and what they mean for the GPUs of one host. Each sample of a log names its source."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import imagegen.checks

sys.path.insert(0, str(Path(imagegen.checks.__file__).parent))  # as in a container, where the folder is copied to

from smoke import fabric
from smoke.fabric import PROBLEMS, Log, Surroundings, last_warning, parse

from tests.support.golden import Golden

SAMPLES = Path(__file__).parents[1] / "samples" / "nccl"
NVLINK = ("NVLink 4 x 18", 450.0)

# Sample -> the fields that are not empty in it.
READ: dict[str, dict[str, Any]] = {
    "nvlink": {
        "versions": ("2.28.9",),
        "transports": {"P2P/CUMEM/read": 3},
        "networks": ("Socket",),
        "interfaces": ("eth0",),
        "environment": {"NCCL_NVLS_ENABLE": "0"},
        "paths": (("NVL", 370.8),),
        "problems": ("libibverbs",),
    },
    "nvls": {"transports": {"P2P/CUMEM": 1}, "nvls": True},
    "shm": {
        "transports": {"SHM/direct/direct": 2},
        "networks": ("Socket",),
        "interfaces": ("eno1", "wlan0"),
        "environment": {"NCCL_P2P_DISABLE": "1"},
        "paths": (("NVL", 370.8),),
        "problems": ("rdma-device",),
    },
    "sockets": {
        "transports": {"NET/Socket": 2},
        "networks": ("Socket",),
        "interfaces": ("lo",),
        "environment": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
        "paths": (("NVL", 370.8),),
    },
    "infiniband": {
        "transports": {"NET/IB/GDRDMA": 3, "P2P/CUMEM": 1},
        "networks": ("IB",),
        "rdma": ("mlx5_0:1/IB", "mlx5_1:1/IB/SHARP"),
    },
    "infiniband-broken": {
        "transports": {"NET/IB": 1},
        "networks": ("IB",),
        "rdma": ("mlx5_0:1/RoCE",),
        "problems": ("memlock", "gdr"),
    },
    "efa": {
        "transports": {"NET/AWS Libfabric": 1, "NET/Libfabric/GDRDMA": 2},
        "networks": ("Libfabric",),
        "plugins": ("libnccl-net.so",),
        "rdma": ("efa",),
    },
    "efa-missing": {
        "networks": ("Socket",),
        "plugins": ("libnccl-net.so",),
        "interfaces": ("ens32",),
        "problems": ("libibverbs", "efa", "plugin"),
    },
    "shm-full": {"problems": ("shm-full",)},
    "two-versions": {"versions": ("2.22.3", "2.28.9"), "problems": ("connect", "versions")},
}
EMPTY = parse([])


def sample(name: str) -> list[str]:
    return (SAMPLES / f"{name}.log").read_text().splitlines()


@pytest.mark.parametrize("name", READ)
def test_samples_are_read(name: str) -> None:
    read = parse(sample(name))
    found = {field: getattr(read, field) for field in Log.__dataclass_fields__}
    expected = {field: getattr(EMPTY, field) for field in found} | READ[name]
    assert found == expected


def test_every_sample_names_its_source_and_is_tested() -> None:
    assert {path.stem for path in SAMPLES.glob("*.log")} == set(READ)
    assert all(re.match(r"# Written after .*(not|recorded)", " ".join(sample(name)[:2])) for name in READ)


@given(st.randoms(use_true_random=False))
def test_the_order_of_lines_is_of_no_account(shuffling: random.Random) -> None:
    for name in READ:
        lines = sample(name)
        shuffled = lines[:]
        shuffling.shuffle(shuffled)
        assert parse(shuffled) == parse(lines)


PIECES = (
    "NCCL INFO Channel 00/0 : ", "0[0] -> 1[1]", " via ", "NET/", "P2P/indirect/", "GPU/0-1 :", "GPU/0-2 (2/", "/NVL)",
    "NET/IB : Using", "NET/Socket : Using [0]", "NCCL version ", "NCCL_X set by environment to ", ".", "9" * 25, "\n",
    " nvls channels", "NCCL WARN ", "NET/OFI Selected Provider is ", "Using network ",
)  # fmt: skip


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(PIECES)), max_size=30))
def test_any_text_can_be_read(pieces: list[str]) -> None:
    lines = "".join(pieces).split("\n")
    read = parse(lines)
    assert all(count > 0 for count in read.transports.values())
    assert set(read.problems) <= {problem.id for problem in PROBLEMS}
    assert isinstance(last_warning(lines), str)


INFO = "h:1:2 [0] NCCL INFO "
WARN = "h:1:2 [0] file.cc:1 NCCL WARN "
PLUGIN = f"{INFO}NET/Plugin: libnccl-net.so: "


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"{WARN}Call to ibv_create_cq failed with error Cannot allocate memory", "memlock"),
        (f"{PLUGIN}libfabric.so.1: cannot open shared object file: No such file or directory", "plugin"),
        (f"{PLUGIN}/opt/lib/libnccl-net.so: undefined symbol: fi_getinfo", "plugin"),
        (f"{WARN}P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case", "p2p-broken"),
        (f"{INFO}P2P is disabled between connected GPUs 2 and 1. You can repress this message", "p2p-broken"),
        (f"{WARN}NET/IB : Unable to open device mlx5_0", "rdma-open"),
        (f"{INFO}NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "gdr"),
        (f"{WARN}Bootstrap : no socket interface found", "interface"),
        (f"{WARN}Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 19000", "same-gpu"),
        (f"{INFO}Failed to bind NVLink SHARP (NVLS) Multicast memory of size 1 : CUDA error 801 'x'.", "nvls"),
        (f"{WARN}NET/OFI Could not find any optimal provider", "efa"),
    ],
)
def test_messages_that_explain_a_fallback(line: str, problem: str) -> None:
    assert parse([line]).problems == (problem,)


@pytest.mark.parametrize(
    "line",
    [
        f"{INFO}NET/Plugin: Could not find: libnccl-net.so",
        f"{INFO}NET/Plugin: No plugin found (libnccl-net.so)",
        f"{INFO}NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory",
        f"{INFO}NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file",
        f"{INFO}socketPollConnect: connect to 10.0.0.2<1> returned Connection refused, retrying (1/34) after sleep",
        f"{INFO}NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)",
    ],
)
def test_ordinary_messages_are_no_problem(line: str) -> None:
    assert parse([line]).problems == ()


def test_the_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """2 * 7 / 8 of 1 GB in 4 ms, as doc/PERFORMANCE.md has it for eight ranks; with two ranks it is size over time."""
    assert fabric.bus_bandwidth(10**9, 0.004, 8) == pytest.approx(437.5)
    assert fabric.bus_bandwidth(10**9, 0.004, 2) == pytest.approx(250)


@pytest.mark.parametrize(
    ("paths", "capability", "expected"),
    [
        ((("NVL", 370.8),), 90, ("NVLink 4 x 18", 450)),
        ((("NVL", 123.6), ("NVL", 370.8)), 90, ("NVLink 4 x 6", 150)),  # H100 NVL: the worst pair counts
        ((("NVL", 240.0),), 80, ("NVLink 3 x 12", 300)),
        ((("NVL", 721.8),), 100, ("NVLink 5 x 18", 900)),  # "maxBw 721.8": NVIDIA/nccl issue 1807, 2025-08-13, B200
        ((("NVL", 48.0),), 86, ("NVLink 3 x 4", 56.25)),
        ((("PIX", 48.0),), 90, ("PCIe (PIX)", 64)),
        ((("NVL", 240.0), ("PHB", 24.0)), 80, ("PCIe (PHB)", 32)),
        ((("SYS", 10.0),), 89, ("between CPUs (SYS)", 10)),
        ((("NVL", 370.8),), 130, None),
        ((("DIS", 0.0),), 90, None),
        ((), 90, None),
    ],
)
def test_what_the_links_should_give(paths: Any, capability: int, expected: tuple[str, float] | None) -> None:
    found = fabric.link(with_paths(paths), capability)
    assert found == (expected and (expected[0], pytest.approx(expected[1])))


def with_paths(paths: tuple[tuple[str, float], ...]) -> Log:
    return Log((), {}, (), (), (), (), {}, tuple(sorted(paths)), nvls=False, problems=())


def test_each_bandwidth_has_a_source() -> None:
    assert all(row.source and re.fullmatch(r"20\d\d-\d\d", row.date) for row in fabric.NVLINKS)


def test_sockets_between_the_gpus_of_a_host_are_wrong_unless_asked_for() -> None:
    log = parse(sample("sockets"))
    assert fabric.wrong(log, {}).keys() == {"sockets"}
    assert fabric.wrong(log, {"NCCL_P2P_DISABLE": "1"}).keys() == {"sockets"}
    assert fabric.wrong(log, {"NCCL_SHM_DISABLE": "0"}).keys() == {"sockets"}
    assert not fabric.wrong(log, {"NCCL_SHM_DISABLE": "1"})
    assert not any(fabric.wrong(parse(sample(name)), {}) for name in ("nvlink", "shm", "infiniband", "efa"))


def ids(log: str, around: Surroundings, measured: float | None = 300.0) -> set[str]:
    return {note.id for note in fabric.notes(parse(sample(log)), around, NVLINK, measured)}


def test_a_host_without_problems_has_no_notes() -> None:
    """A missing libibverbs is of no account where there is no RDMA."""
    assert ids("nvlink", Surroundings({}, shm=1 << 30, memlock=8 << 20)) == set()


def test_notes_name_what_is_slow_and_why() -> None:
    assert ids("nvlink", Surroundings({}), measured=200.0) == {"bandwidth"}
    assert ids("nvlink", Surroundings({}, shm=64 << 20)) == {"shm-small"}
    assert ids("nvlink", Surroundings({}, rdma=("mlx5_0",))) == {"libibverbs", "verbs"}
    assert ids("infiniband", Surroundings({}, ("mlx5_0",), ("uverbs0",), memlock=8 << 20)) == {"memlock-limit"}
    assert ids("infiniband", Surroundings({}, ("mlx5_0",), ("uverbs0",))) == set()
    assert ids("shm", Surroundings({"NCCL_P2P_DISABLE": "1"}), measured=20.0) == {"p2p-off", "bandwidth"}
    assert ids("sockets", Surroundings({"NCCL_P2P_LEVEL": "LOC"})) == {"p2p-off"}
    assert ids("efa-missing", Surroundings({}, ("rdmap0s6",))) == {"libibverbs", "efa", "plugin", "verbs"}


def test_the_cause_of_a_fallback_is_the_variable_that_is_set() -> None:
    (note,) = fabric.notes(parse(sample("shm")), Surroundings({"NCCL_P2P_DISABLE": "1"}), NVLINK, None)
    assert "NCCL_P2P_DISABLE" in note.text
    assert "NCCL_P2P_DISABLE" in note.fix
    (note,) = fabric.notes(parse(sample("shm")), Surroundings({}), NVLINK, None)
    assert "NCCL_P2P" not in note.fix


def test_shared_memory_is_what_pci_without_p2p_takes() -> None:
    assert fabric.notes(parse(sample("shm")), Surroundings({}), ("PCIe (PHB)", 32.0), 20.0) == []


def test_the_last_warning_is_the_reason_of_a_failure(golden: Golden) -> None:
    golden.check(last_warning(sample("shm-full")))
    assert last_warning(sample("nvlink")) == ""
