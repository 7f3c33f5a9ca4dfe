"""Reading a machine: real outputs, foreign ones, and none at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.checks.preflight import probe, snapshot
from imagegen.checks.preflight.model import CudaLibrary, CudaProbe, Gpu
from imagegen.checks.preflight.program import answer, start
from tests.support.golden import Golden

# /proc/driver/nvidia/version of an H200's host (2026-11-21), and of the closed module as NVIDIA's README shows it.
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \n"
    "GCC version:  gcc version 15.3.0 (GCC) \n"
)
CLOSED_MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
# What nvidia-smi 580.159.04 answers to the query of `snapshot`, idle and with 4 GiB in use (2026-11-21).
H200 = "580.159.04, 9.0, 143771, 143156, NVIDIA H200\n"


def test_the_driver_of_both_modules() -> None:
    assert snapshot.parse_version(OPEN_MODULE) == "580.159.04"
    assert snapshot.parse_version(CLOSED_MODULE) == "535.104.05"
    assert snapshot.parse_version("") is None


def test_gpus_as_nvidia_smi_shows_them() -> None:
    driver, gpus, why = snapshot.parse_smi(0, H200 * 2)
    assert (driver, gpus, why) == ("580.159.04", (Gpu("NVIDIA H200", "9.0", 143771, 143156),) * 2, "")


def test_what_a_driver_does_not_report_is_left_open() -> None:
    shared = "580.95.05, 12.1, [N/A], [N/A], NVIDIA GB10\n"  # its memory is the host's
    assert snapshot.parse_smi(0, shared)[1] == (Gpu("NVIDIA GB10", "12.1", None, None),)
    named = "580.95.05, 9.0, 1, 1, A, B\n"
    assert snapshot.parse_smi(0, named)[1][0].name == "A, B"


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        # Measured: a field that this nvidia-smi does not know.
        (2, 'Field "compute_cap" is not a valid field to query.\n\n', 'Field "compute_cap" is not a valid field'),
        (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n", "Failed"),
        (0, "No devices were found\n", "No devices were found"),
        (0, "", "it shows no GPU"),
    ],
)
def test_no_answer_says_why(code: int, said: str, why: str) -> None:
    driver, gpus, reason = snapshot.parse_smi(code, said)
    assert (driver, gpus) == (None, ())
    assert reason.startswith(why)


TEXT = st.one_of(
    st.text(max_size=80), st.lists(st.sampled_from(["580.1", "9.0", ", ", "\n", "[N/A]", "x", "1"])).map("".join)
)


@given(st.integers(-20, 255), TEXT)
def test_any_output_is_read_or_refused_in_a_line(code: int, said: str) -> None:
    driver, gpus, why = snapshot.parse_smi(code, said)
    assert bool(gpus) == bool(driver) == (why == "")
    assert len(why.splitlines()) <= 1


@given(TEXT)
def test_any_version_file_is_read(text: str) -> None:
    found = snapshot.parse_version("NVRM version: " + text)
    assert found is None or all(part.isdecimal() for part in found.split(".") if part)


@given(st.integers(-30, 255), TEXT)
def test_any_probe_is_an_answer_or_a_reason(code: int, said: str) -> None:
    found = probe.parse(code, said)
    assert (found.init is None) == bool(found.died)


def test_what_the_probe_said_on_an_h200() -> None:
    good = probe.parse(0, '["/usr/lib/libcuda.so.1", 0, 1]\n')
    assert (good.init, good.devices) == (0, 1)
    assert probe.parse(0, '["/usr/local/cuda-13.0/compat/libcuda.so.580.95.05", 803, 0]').init == 803
    assert probe.parse(-6, "double free or corruption (!prev)") == CudaProbe(None, None, died="SIGABRT")


def test_the_probe_runs_where_there_is_no_driver(tmp_path: Path) -> None:
    found = probe.probe({"LD_LIBRARY_PATH": str(tmp_path)})
    if not any(name.startswith("nvidia") for name in os.listdir("/dev")):
        assert found.died.startswith("no libcuda.so.1: ")


def library(root: Path, directory: str, target: str) -> None:
    folder = root / directory.lstrip("/")
    folder.mkdir(parents=True)
    (folder / target).write_bytes(b"")
    (folder / "libcuda.so.1").symlink_to(target)


def test_libraries_that_come_before_the_drivers(tmp_path: Path) -> None:
    library(tmp_path, "/usr/local/cuda/compat", "libcuda.so.580.95.05")  # the names in NVIDIA's cuda-compat-13-0
    library(tmp_path, "/usr/local/cuda/lib64/stubs", "libcuda.so")
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf.d/00-cuda.conf").write_text("# by an image\n/usr/local/cuda/compat\n")
    environ = {"LD_LIBRARY_PATH": "/nowhere::/usr/local/cuda/lib64/stubs"}
    assert list(snapshot.libraries(environ, str(tmp_path))) == [
        CudaLibrary("/usr/local/cuda/lib64/stubs/libcuda.so.1", None, "LD_LIBRARY_PATH", stub=True),
        CudaLibrary("/usr/local/cuda/compat/libcuda.so.1", "580.95.05", "/etc/ld.so.conf.d/00-cuda.conf"),
    ]


GKE, WSL, OPENSHIFT = "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/lib64"


@pytest.mark.parametrize(
    ("mounted", "searched", "reaches"),
    [
        (GKE, "", False),
        (GKE, "/nowhere:/usr/local/cuda/lib64", False),
        (GKE, f"/nowhere:{GKE}", True),
        (WSL, GKE, False),
        (WSL, WSL, True),
        (OPENSHIFT, "", False),
        ("/usr/lib/x86_64-linux-gnu", "", True),  # as NVIDIA's container toolkit mounts it
    ],
)
def test_a_driver_that_is_mounted_and_not_found(mounted: str, searched: str, reaches: bool, tmp_path: Path) -> None:
    library(tmp_path, mounted, "libcuda.so.580.95.05")
    found = snapshot.unreached({"LD_LIBRARY_PATH": searched}, str(tmp_path))
    assert found == (None if reaches else f"{mounted}/libcuda.so.1")


@pytest.mark.parametrize("directory", ["/usr/local/nvidia/lib64", "/opt/driver"])
def test_a_loaders_cache_counts_and_its_configuration_does_not(directory: str, tmp_path: Path) -> None:
    """ld.so reads the cache that ldconfig wrote, and neither ld.so.conf nor what has gone since."""
    library(tmp_path, GKE, "libcuda.so.580.95.05")
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf.d/nvidia.conf").write_text(f"{GKE}\n")
    assert snapshot.unreached({}, str(tmp_path)) == f"{GKE}/libcuda.so.1"
    strings = f"glibc-ld.so.cache1.1\0libcuda.so.1\0{directory}/libcuda.so.1\0".encode()
    (tmp_path / "etc/ld.so.cache").write_bytes(strings)
    assert snapshot.unreached({}, str(tmp_path)) == (None if directory == GKE else f"{GKE}/libcuda.so.1")


def test_a_machine_of_files(tmp_path: Path, golden: Golden) -> None:
    for name in ("dev/nvidia0", "dev/nvidiactl", "dev/null", "dev/infiniband/uverbs0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(OPEN_MODULE)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.15.153.1-microsoft-standard-WSL2\n")
    environ = {"HOME": str(tmp_path / "none")}
    found = snapshot.gather(environ, None, root=str(tmp_path))
    golden.check(found.smi)
    assert found.driver == "580.159.04"
    assert found.devices == ("nvidia0", "nvidiactl", "infiniband/uverbs0")
    assert (found.wsl, found.writable["HOME"], found.shm) == (True, False, None)


def test_an_empty_machine(tmp_path: Path) -> None:
    assert snapshot.begin({}, str(tmp_path / "none")) is None
    found = snapshot.gather({}, None, root=str(tmp_path / "none"))
    assert (found.driver, found.devices, found.gpus, found.libraries, found.shm) == (None, (), (), (), None)


def test_nvidia_smi_is_asked_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\necho "{H200.strip()}"\n')
    program.chmod(0o755)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = snapshot.gather(os.environ, snapshot.begin(os.environ, str(tmp_path)), root=str(tmp_path))
    assert (found.driver, found.gpus[0].name) == ("580.159.04", "NVIDIA H200")
    assert "--query-gpu=driver_version,compute_cap,memory.total,memory.free,name" in (tmp_path / "asked").read_text()
    monkeypatch.setattr(snapshot, "answer", lambda process, patience: answer(process, patience / 30))
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    found = snapshot.gather(os.environ, snapshot.begin(os.environ, str(tmp_path)), root=str(tmp_path))
    golden.check(found.smi)
    assert found.gpus == ()
    monkeypatch.setenv("PATH", "/nowhere")
    assert snapshot.begin(os.environ, str(tmp_path)) is None


def test_a_program_is_answered_for() -> None:
    def run(script: str, patience: float = 10) -> tuple[int, str] | None:
        return answer(start(["sh", "-c", script], {"PATH": os.environ["PATH"]}), patience)

    assert run("echo out; echo err >&2; cat; exit 3") == (3, "out\nerr\n")
    assert run("kill -ABRT $$") == (-6, "")
    assert run("head -c 300000 /dev/zero | tr '\\0' x") == (0, "x" * 300000)
    assert run("exec sleep 60", 0.1) is None
    assert run("exec sleep 60 >&- 2>&-", 0.1) is None
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        start(["no-such-program"], {})
    assert len(os.listdir("/proc/self/fd")) == before
