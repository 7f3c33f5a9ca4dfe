"""Each check against a fact: what a machine really said, or what the source of the check states."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.checks.preflight import formatting
from imagegen.checks.preflight.gpu_checks import FIRST_DRIVER
from imagegen.checks.preflight.model import CudaLibrary, CudaProbe, Finding, Gpu, Image, Machine, numbers, older
from imagegen.checks.preflight.table import CHECKS, Check, Row, examine
from tests.support.golden import Golden

H200 = Gpu("NVIDIA H200", "9.0", 143771, 143156)  # idle, as nvidia-smi showed it on 2026-11-21
RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", "12.0", 32607, 32110)
HOPPER = Image("hopper-vllm-cu130-py311", "13.0", ("9.0",), "580.65.06", {"torch": "2.11.0", "vllm": "0.24.0"})
CU128 = Image("old-cu128-py311", "12.8", ("9.0",), "525", {"torch": "2.8.0", "vllm": "0.11.0"})
CPU = Image("cpu-grpo-cpu-py311", None, (), None, {"torch": "2.13.0+cpu"})
ENGINE = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "HOME": "/home/user"}
SHM = 16 << 30
GOOD = Machine(
    ENGINE, driver="580.159.04", devices=("nvidia0", "nvidiactl"), gpus=(H200,), shm=SHM, writable={"HOME": True}
)


def found(image: Image = HOPPER, machine: Machine = GOOD, **changes: Any) -> list[Finding]:
    return examine(image, machine._replace(**changes))


def with_env(**variables: str) -> dict[str, Any]:
    return {"environ": {**ENGINE, **variables}}


def test_a_good_machine_has_no_findings() -> None:
    assert found() == []
    assert found(CPU, Machine({}, shm=SHM)) == []


# What is odd -> the check that says so, how bad it is, and formatting that must be in it.
CASES: dict[str, tuple[Image, dict[str, Any], tuple[str, str], tuple[str, ...]]] = {
    # NVIDIA, "Minor Version Compatibility": CUDA 13.x needs a driver of at least 580.
    "driver too old": (HOPPER, {"driver": "570.124.06"}, ("driver", "error"), ("570.124.06", "580.65.06", "13.0")),
    # The same page: 12.x runs on 525 and later, without PTX; CUDA 12.8 came with 570.26.
    "driver without this PTX": (CU128, {"driver": "535.104.05"}, ("driver", "warning"), ("570.26", "SASS", "PTX")),
    "another GPU": (HOPPER, {"gpus": (RTX_5090,)}, ("architecture", "warning"), ("RTX 5090", "12.0", "9.0")),
    # Seed failure 3: a list without 12.0 on Blackwell.
    "arch list": (
        Image("x", "12.8", ("12.0",), None, {"torch": "2.9.0"}),
        {"gpus": (RTX_5090,), **with_env(TORCH_CUDA_ARCH_LIST="8.0;9.0a")},
        ("architecture", "warning"),
        ("TORCH_CUDA_ARCH_LIST=8.0;9.0a", "12.0"),
    ),
    "no GPU given": (
        HOPPER,
        {"gpus": (), "devices": (), "smi": "there is no nvidia-smi"},
        ("gpu", "warning"),
        ("580.159.04", "got no GPU", "--gpus all"),
    ),
    "no driver": (HOPPER, {"gpus": (), "devices": (), "driver": None}, ("gpu", "warning"), ("no driver",)),
    "devices alone": (
        HOPPER,
        {"gpus": (), "smi": "Driver/library version mismatch"},
        ("gpu", "warning"),
        ("mismatch",),
    ),
    "capabilities": (HOPPER, with_env(NVIDIA_DRIVER_CAPABILITIES="graphics,utility"), ("gpu", "warning"), ("libcuda",)),
    # 64 MiB is what `docker run` gives.
    "shm": (HOPPER, {"shm": 64 << 20}, ("shm", "warning"), ("64 MiB", "--ipc=host", "--shm-size")),
    # Seed failure 9.
    "allocator": (
        HOPPER,
        with_env(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512,expandable_segments:True"),
        ("allocator", "warning"),
        ("expandable_segments:True", "unset PYTORCH_CUDA_ALLOC_CONF"),
    ),
    # Seed failure 17: the release of WSL2's kernel.
    "WSL2": (HOPPER, {"kernel": "5.15.153.1-microsoft-standard-WSL2"}, ("system", "warning"), ("WSL2",)),
    "macOS": (HOPPER, {"system": "macOS"}, ("system", "error"), ("macOS",)),
    # Seed failure 4.
    "empty number": (HOPPER, with_env(ARNOLD_WORKER_GPU=""), ("empty", "warning"), ("ARNOLD_WORKER_GPU", "empty")),
    # Measured on an H200, 2026-11-21: cuda-compat 580.95.05 with driver 580.159.04 gives 803, the stub 34.
    "803": (
        HOPPER,
        {"libraries": (CudaLibrary("/usr/local/cuda/compat/libcuda.so.1", "580.95.05", "LD_LIBRARY_PATH"),)},
        ("loader", "error"),
        ("803", "580.95.05", "580.159.04", "/usr/local/cuda/compat"),
    ),
    "stub": (
        HOPPER,
        {"libraries": (CudaLibrary("/opt/stubs/libcuda.so.1", None, "LD_LIBRARY_PATH", stub=True),)},
        ("loader", "error"),
        ("34", "stub"),
    ),
    "forward compatibility": (
        HOPPER,
        {
            "driver": "550.54.14",
            "gpus": (RTX_5090,),
            "libraries": (CudaLibrary("/usr/local/cuda/compat/libcuda.so.1", "580.95.05", "/etc/ld.so.conf.d/c.conf"),),
        },
        ("loader", "warning"),
        ("data-center GPUs", "/etc/ld.so.conf.d/c.conf"),
    ),
    "GKE, and LD_LIBRARY_PATH replaced": (
        HOPPER,
        {"gpus": (), "unreached": "/usr/local/nvidia/lib64/libcuda.so.1", **with_env(LD_LIBRARY_PATH="/opt/lib")},
        ("loader", "error"),
        ("LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/opt/lib", "LIBRARY_PATH"),
    ),
    "WSL, and no LD_LIBRARY_PATH": (
        HOPPER,
        {"gpus": (), "unreached": "/usr/lib/wsl/lib/libcuda.so.1"},
        ("loader", "error"),
        ("unset", "LD_LIBRARY_PATH=/usr/lib/wsl/lib,"),
    ),
    "OpenShift's driver container": (
        HOPPER,
        {"gpus": (), "unreached": "/run/nvidia/driver/usr/lib64/libcuda.so.1"},
        ("loader", "error"),
        ("runtimeClassName: nvidia", "does not help"),
    ),
    "a host whose driver is a container's": (
        HOPPER,
        {"place": "host", "gpus": (), "unreached": "/run/nvidia/driver/usr/lib64/libcuda.so.1"},
        ("loader", "warning"),
        ("container toolkit",),
    ),
    "no home": (
        HOPPER,
        {"writable": {"HOME": False}, "uid": 12345, "environ": {**ENGINE, "HOME": "/"}},
        ("home", "warning"),
        ("HOME (/)", "12345"),
    ),
    "no name": (HOPPER, {"user": None, "uid": 12345}, ("home", "warning"), ("getuser", "LOGNAME")),
    # Docker's default on many hosts is 64 KiB; NCCL's documentation asks for unlimited.
    "memlock": (
        HOPPER,
        {"devices": ("nvidia0", "infiniband/uverbs0"), "memlock": 65536},
        ("limits", "warning"),
        ("64 KiB", "memlock=-1"),
    ),
    # Seed failure 22: an engine beside a trainer; figures of an H200 with a 4 GiB tensor on it are below the limit.
    "memory in use": (
        HOPPER,
        {"gpus": (Gpu("NVIDIA H200", "9.0", 143771, 71885),)},
        ("memory", "note"),
        ("GPU 0", "gpu_memory_utilization", "below 0.49"),
    ),
    # Seed failure 26.
    "wandb": (
        HOPPER._replace(packages={"wandb": "0.22.0"}),
        with_env(WANDB_MODE="online"),
        ("wandb", "note"),
        ("WANDB_API_KEY", "WANDB_MODE=offline"),
    ),
    # Measured on the same H200: cuInit's results.
    "cuInit 803": (
        HOPPER,
        {"probe": CudaProbe("/usr/local/cuda/compat/libcuda.so.580.95.05", 803)},
        ("cuda", "error"),
        ("803", "libcuda.so.580.95.05"),
    ),
    "cuInit 100": (
        HOPPER,
        {"probe": CudaProbe("/usr/lib/libcuda.so.1", 100)},
        ("cuda", "error"),
        ("no GPU is visible",),
    ),
    # Seed failure 17: "double free" in the driver is an abort, and no Python error.
    "abort": (HOPPER, {"probe": CudaProbe(None, None, died="SIGABRT")}, ("cuda", "error"), ("killed by SIGABRT",)),
    "no libcuda": (
        HOPPER,
        {"probe": CudaProbe(None, None, died="no libcuda.so.1: x")},
        ("cuda", "error"),
        ("no libcuda",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_fact_is_found_and_nothing_else(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")  # with no .netrc in it
    image, changes, (check, severity), said = CASES[case]
    others = {"forward compatibility": 2, "devices alone": 0}.get(case, 0)
    first, *rest = [each for each in found(image, **changes) if each.check == check] or [Finding("none", "", "", "")]
    assert (first.check, first.severity) == (check, severity)
    assert not rest
    for words_ in said:
        assert words_ in f"{first.text} {first.fix}"
    assert len([each for each in found(image, **changes) if each.check != check]) <= others
    assert not first.text.endswith(".")
    assert not first.fix.endswith(".")


QUIET: dict[str, tuple[Image, dict[str, Any]]] = {
    "an image for the CPU has no need of a GPU": (CPU, {"gpus": (), "devices": (), "driver": None}),
    "a newer driver": (HOPPER, {"driver": "595.10"}),
    "the driver that CUDA came with": (HOPPER, {"driver": "580.65.06"}),
    "an image that runs on 9.0 runs on the same major's later minor": (
        HOPPER._replace(gpus=("10.0",)),
        {"gpus": (Gpu("NVIDIA B300", "10.3"),), "driver": "580.65.06"},
    ),
    "the driver's own libcuda on the path, as Kubernetes' device plugin does it": (
        HOPPER,
        {"libraries": (CudaLibrary("/usr/local/nvidia/lib64/libcuda.so.1", "580.159.04", "LD_LIBRARY_PATH"),)},
    ),
    "the same, of a driver that tells no version": (
        HOPPER,
        {
            "driver": None,
            "libraries": (CudaLibrary("/usr/local/nvidia/lib64/libcuda.so.1", "580.159.04", "LD_LIBRARY_PATH"),),
        },
    ),
    "expandable segments without an engine": (
        HOPPER._replace(packages={"torch": "2.11.0"}),
        with_env(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    ),
    "expandable segments switched off": (HOPPER, with_env(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False")),
    "numbers that are numbers": (HOPPER, with_env(WORLD_SIZE="8", OMP_NUM_THREADS="4", HF_TOKEN="")),
    "PTX of an older architecture": (HOPPER, with_env(TORCH_CUDA_ARCH_LIST="8.0+PTX")),
    "a list of names, which torch knows too": (HOPPER, with_env(TORCH_CUDA_ARCH_LIST="Hopper")),
    "RDMA and unlimited": (HOPPER, {"devices": ("nvidia0", "infiniband/uverbs0"), "memlock": None}),
    "rdma_cm alone is no RDMA": (HOPPER, {"devices": ("nvidia0", "infiniband/rdma_cm"), "memlock": 65536}),
    "a name from the environment": (HOPPER, {"user": None, **with_env(LOGNAME="user")}),
    "W&B offline": (HOPPER._replace(packages={"wandb": "0.22.0"}), with_env(WANDB_MODE="offline")),
    "4.6 GiB of an H200 are in use, as measured": (HOPPER, {"gpus": (Gpu("NVIDIA H200", "9.0", 143771, 138442),)}),
    "a GPU whose driver does not say how much is free": (HOPPER, {"gpus": (Gpu("NVIDIA GB10", "9.0", None, None),)}),
    "CUDA that starts": (HOPPER, {"probe": CudaProbe("/usr/lib/libcuda.so.1", 0, 1)}),
}


@pytest.mark.parametrize("case", QUIET)
def test_what_is_fine_is_not_mentioned(case: str) -> None:
    image, changes = QUIET[case]
    assert found(image, **changes) == []


def test_each_check_has_a_case() -> None:
    assert {check for _, _, (check, _), _ in CASES.values()} == {check.name for check in CHECKS}


def test_a_host_is_asked_what_concerns_it() -> None:
    host = Machine({"WORLD_SIZE": ""}, place="host", driver="570.86.10", gpus=(H200,), shm=0, writable={"HOME": False})
    assert [each.check for each in examine(HOPPER, host)] == ["driver"]
    assert [each.check for each in examine(Image(), host._replace(gpus=(), driver=None))] == ["gpu"]


def test_a_check_that_fails_is_a_note_and_the_worst_comes_first(golden: Golden) -> None:
    def broken(*_: object) -> list[Finding]:
        raise ValueError("no such thing")

    mixed = [Check("broken", broken, "x"), *CHECKS]
    findings = examine(HOPPER, GOOD._replace(driver="570.1", shm=1), mixed)
    assert [each.severity for each in findings] == ["error", "warning", "note"]
    golden.check(findings[-1].text)


def test_the_startup_checks_text_is_short_and_ascii(golden: Golden) -> None:
    golden.check(formatting.banner(HOPPER, GOOD, []), formatting.banner(HOPPER, GOOD._replace(gpus=(H200,) * 8), []))
    odd = Finding("x", "warning", "caf\u00e9 \U0001f40d \x1b[31m", "f")
    assert "warning: caf\\xe9 \\U0001f40d \\x1b[31m" in formatting.banner(HOPPER, GOOD, [odd])
    note = Finding("x", "note", "not worth a line", "f")
    assert "not worth" not in formatting.banner(HOPPER, GOOD, [note])


@given(st.text(max_size=200))
def test_whatever_is_said_is_printable_ascii(text: str) -> None:
    shown = formatting.ascii_only(text)
    assert all(char == "\n" or " " <= char <= "~" for char in shown)
    assert shown.count("\n") == text.count("\n")


VERSIONS = st.lists(st.integers(0, 999), min_size=1, max_size=3)


@given(VERSIONS, VERSIONS)
def test_versions_compare_by_their_numbers(one: list[int], two: list[int]) -> None:
    assert older(".".join(map(str, one)), ".".join(map(str, two))) == (one < two)


@given(st.text(max_size=12), st.text(max_size=12))
def test_what_is_no_version_is_never_older(one: str, two: str) -> None:
    assert older(one, two) in (False, bool(numbers(one) and numbers(two) and numbers(one) < numbers(two)))


def test_drivers_of_toolkits_rise_with_them() -> None:
    rows = [(numbers(cuda), numbers(first)) for cuda, first in FIRST_DRIVER.items()]
    assert rows == sorted(rows)
    assert [first for _, first in rows] == sorted(first for _, first in rows)


def test_a_row_shows_what_was_found_and_not_the_opposite_of_its_status(golden: Golden) -> None:
    rows = (Row("shm", "warning", "it is large enough"), Row("home", "ok", "it can be written"))
    findings = (Finding("shm", "warning", "64 MiB", "--ipc=host"), Finding("shm", "note", "old", "update"))
    text = formatting.table(rows, findings)
    golden.check(text)
    first, *_ = text.splitlines()
    assert first.split(maxsplit=2) == ["warning", "shm", "64 MiB"]
    for shown in ("it can be written", "fix: --ipc=host", "old", "fix: update"):
        assert text.count(shown) == 1
    assert all(len(line) <= 80 and line == line.rstrip() for line in formatting.table(rows, findings).splitlines())
