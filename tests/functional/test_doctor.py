"""The doctor from outside: hosts, containers that ended, and logs that say something else than they mean."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.utils.socket import STDERR, STDOUT
from hypothesis import given
from hypothesis import strategies as st

from imagegen.checks.preflight.model import Finding, Image, Machine
from imagegen.checks.preflight.table import CHECKS, Row
from imagegen.compat.models import Models
from imagegen.compat.rule import Rule
from imagegen.core.config import Settings
from imagegen.core.errors import ContainerError, EngineError
from imagegen.core.gpu import Gpu
from imagegen.engine import ContainerInfo, Engine
from imagegen.engine.inspection import exec_in
from imagegen.run.doctor import diagnosis as doctor
from imagegen.run.doctor import host as doctor_host
from imagegen.run.doctor import messages as doctor_messages
from imagegen.run.doctor.container import check_ending, examine_container, parse
from imagegen.run.doctor.diagnosis import Diagnosis
from imagegen.spec.model import Cell
from tests.support.errors import raises
from tests.support.matrix_samples import SMALL, load

GB = 1_000_000_000

# Messages as people have met them -> words of what they mean. From issue threads and the documents of the field.
MET = {
    "ValueError: Free memory on device cuda:0 (13.33/22.07 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 19.86 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.": "trainer",
    "ValueError: Free memory on device (0.49/79.32 GiB) on startup is less than desired GPU memory utilization (0.6, "
    "47.59 GiB).": "trainer",
    "RuntimeError: Worker failed with error 'Error in memory profiling. Initial free memory 113.54 GiB, current free "
    "memory 133.1 GiB. This happens when other processes sharing the same container release GPU memory": "measured",
    "ValueError: The checkpoint you are trying to load has model type `ministral3` but Transformers does not recognize "
    "this architecture.": "model type ministral3",
    '  File "/opt/venv/lib/python3.11/site-packages/transformers/models/auto/configuration_auto.py", line 1061, in '
    "__getitem__\n    raise KeyError(key)\nKeyError: 'ministral3'": "model type ministral3",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!":
        "LoRA",
    'RuntimeError: Attempted to set the storage of a tensor on device "cpu" to a storage on different device '
    '"cuda:0".  This is no longer allowed; the devices must match.': "LoRA",
    "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package "
    "flash_attn seems to be not installed. Please refer to the documentation of "
    "https://huggingface.co/docs/transformers/perf_infer_gpu_one#flashattention-2 to install Flash Attention 2.":
        "without the package flash-attn",
    "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package "
    "for FlashAttention2 doesn't seem to be installed.": "without the package flash-attn",
    "ValueError: 'max_tokens' or 'max_completion_tokens' is too large: 32768. This model's maximum context length is "
    "8192 tokens and your request has 181 input tokens (32768 > 8192 - 181).": "8192",
    "ValueError: Unrecognized configuration class <class 'transformers.models.mistral3.configuration_mistral3."
    "Mistral3Config'> for this kind of AutoModel: AutoModelForCausalLM.\nModel type should be one of ApertusConfig, "
    "ArceeConfig.": "AutoModelForCausalLM",
    "OSError: /models/qwen is not a local folder and is not a valid model identifier listed on "
    "'https://huggingface.co/models'\nIf this is a private repository, make sure to pass a token": "/models/qwen",
    "RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but the custom CUDA "
    "extension fused_weight_gradient_mlp_cuda module is not found. To use gradient_accumulation_fusion you must "
    "install APEX with --cpp_ext and --cuda_ext.": "APEX",
    "AssertionError: Expandable segments are not compatible with memory pool. Please track "
    "https://github.com/pytorch/pytorch/issues/147851 for the latest updates.": "expandable_segments",
    "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method": "forked worker",
    "CUDA error: no kernel image is available for execution on the device": "other GPUs",
    "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.": "PTX",
    "torch.AcceleratorError: CUDA error: cudaErrorUnsupportedPtxVersion": "PTX",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver":
        "driver is older",
    "RuntimeError: CUDA driver version is insufficient for CUDA runtime version": "driver is older",
    "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory": "libcudart.so.12",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda "
    "driver combination": "803",
    "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers "
    "are out of shared memory.": "shared memory",
    "RuntimeError: Rank 0 scheduler died during initialization (exit code: 127). If exit code is -9 (SIGKILL), a "
    "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.": "LD_PRELOAD",
    "/opt/venv/bin/python: error while loading shared libraries: libcudart.so.13: cannot open shared object file: No "
    "such file or directory": "LD_PRELOAD",
    '  File "/opt/venv/lib/python3.12/site-packages/vllm/lora/model_manager.py", line 798, in '
    "_create_merged_loras_inplace\n    first_lora: LoRALayerWeights = next(iter(lora_model.loras.values()))\n"
    "StopIteration":
        "without tensors",
    "double free or corruption (!prev)\nAborted (core dumped)": "aborted",
    "ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN4thpp10THCSTensorIlEC1Ev": "another release",
    "ImportError: cannot import name 'ReleaseMemoryOccupationReqInput' from 'sglang.srt.managers.tokenizer_manager'":
        "another SGLang",
    '  File "/opt/venv/lib/python3.11/site-packages/sglang/srt/patch_torch.py", line 58, in _modify_tuple\n    return '
    "*t[:index]\nIndexError: tuple index out of range": "another torch",
    "TypeError: default_weight_loader() got an unexpected keyword argument 'weight_name'": "weight_name",
    "ValueError: There is no module or parameter named 'block' in Qwen3ForCausalLM": "no block",
    "ValueError: invalid literal for int() with base 10: ''": "number is empty",
    "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])": "W&B",
    "UnicodeEncodeError: 'gbk' codec can't encode character '\\u2713' in position 0: illegal multibyte sequence": "gbk",
    "DistNetworkError: The client socket has timed out after 10000ms while trying to connect to (node0, 1).": "node0",
    "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (node0, 2222).":
        "node0",
    "[W1126 14:16:02.764301397 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
    "[E1126 14:16:02.764467367 socket.cpp:1028] [c10d] The client socket has timed out after 8000ms while trying to "
    "connect to (10.213.0.3, 29500).": "DNS does not answer",
    "[W1126 15:52:14.410654037 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
    "[E1126 15:52:21.359337215 socket.cpp:1028] [c10d] The client socket has timed out after 8000ms while trying to "
    "connect to (node0, 29500).": "node0",
    "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (node0, "
    "29500). The client socket has failed to connect to 0.0.0.0:8355 (errno: 113 - No route to host).": "node0",
    "torch.distributed.DistStoreError: Timed out after 11 seconds waiting for clients. 1/2 clients joined.": "1/2",
    "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed "
    "out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:26517$0": "127.0.1.1",
    "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:311] Connect "
    "timeout [none]": "wrong address",
    "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable "
    "to find address for: eth9": "eth9",
    "bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found": "NCCL_SOCKET_IFNAME",
    "init.cc:896 NCCL WARN Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 22203": "22203",
    "[2026-11-23 06:09:25,644 W 143 143] rpc_client.h:153: Failed to connect to GCS at address 10.0.0.2:6380 within 5 "
    "seconds.": "10.0.0.2:6380 ",
    "WARNING utils.py:1401 -- Unable to connect to GCS (ray head) at 10.0.0.2:6380. Check that (1) Ray with matching "
    "version started successfully at the specified address": "10.0.0.2:6380 ",
    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.3\nThis process "
    "on node 10.0.0.3 was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n": "Ray's head",
    "exec /opt/imagegen/entrypoint: exec format error": "another processor",
    "OSError: [Errno 8] Exec format error: '/opt/venv/bin/ninja'": "another processor",
    "bash: ./nvcc: cannot execute binary file: Exec format error": "another processor",
    "Error response from daemon: no match for platform in manifest: not found": "platform",
    "no matching manifest for linux/arm64/v8 in the manifest list entries": "platform",
    "g++: fatal error: Killed signal terminated program cc1plus": "want of memory",
}  # fmt: skip


MODELS = Models("2026-11-22", {"transformers": "4.45.0"}, {}, {"ministral3": {"transformers": "5.0.0"}})


def explain(log: str) -> list[Finding]:
    return doctor_messages.explain_messages(log, MODELS)


def test_a_model_type_comes_with_the_first_releases_that_know_it() -> None:
    for said in MET:
        (found,) = explain(said)
        assert ("5.0.0" in found.fix) == ("ministral3" in said)


@pytest.mark.parametrize("said", MET)
def test_what_people_met_is_explained_once(said: str) -> None:
    (found,) = explain(f"INFO starting\n{said}\nINFO ended\n")
    assert MET[said] in found.text
    assert found.fix


def test_known_messages_have_a_source() -> None:
    assert all(explain(said) for said in MET)
    assert all(message.source and message.date for message in doctor_messages.known_messages())


@given(st.text(max_size=300))
def test_any_log_can_be_read(log: str) -> None:
    assert all(finding.check == "log" for finding in explain(log))


@pytest.mark.parametrize(
    "harmless",
    [
        "KeyError: 'reward'",
        "INFO: 8 GPUs on the same device plugin",
        "UnicodeEncodeError: 'utf-8' codec can't encode x",
        "",
    ],
)
def test_other_messages_are_left_alone(harmless: str) -> None:
    assert explain(harmless) == []


def info(**changes: Any) -> ContainerInfo:
    return replace(
        ContainerInfo(running=False, exit_code=0, out_of_memory=False, labels={}, log="trained\n"), **changes
    )


@pytest.mark.parametrize(
    ("changes", "severity", "said"),
    [
        ({"exit_code": 139}, "error", "SIGSEGV"),  # as SB3 on WSL2, with a silent log
        ({"exit_code": 137, "out_of_memory": True}, "error", "memory"),
        ({"exit_code": 137}, "error", "SIGKILL"),
        ({"exit_code": 143}, "note", "SIGTERM"),
        ({"exit_code": 1}, "error", "exit code 1"),
        ({"log": " \n"}, "warning", "no output"),
    ],
)
def test_how_a_container_ended(changes: dict[str, Any], severity: str, said: str) -> None:
    (found,) = check_ending(info(**changes))
    assert (found.severity, said in found.text) == (severity, True)


def test_a_container_that_ended_well_or_runs_needs_nothing() -> None:
    assert check_ending(info()) == []
    assert check_ending(info(running=True, exit_code=0, log="")) == []


def test_a_row_shows_what_was_found_and_not_the_opposite_of_its_status() -> None:
    rows = (Row("engine", "error", "an engine answers"), Row("disk", "ok", "there is room"), Row("gpu", "-", "a GPU"))
    findings = (Finding("engine", "error", "nothing listens", "start it"), Finding("engine", "note", "old", "update"))
    text = Diagnosis("this host", None, "no GPU", rows, findings).text()
    assert "an engine answers" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("error")]
    assert line.split(maxsplit=2) == ["error", "engine", "nothing listens"]
    for shown in ("there is room", "a GPU", "fix: start it", "old", "fix: update"):
        assert text.count(shown) == 1
    assert all(line.isascii() and len(line) <= 80 and line == line.rstrip() for line in text.splitlines())


class EngineInfo:
    """The part of an engine that the doctor reads."""

    def __init__(self, seen: ContainerInfo, answer: bytes | None) -> None:
        self._seen, self._answer = seen, answer

    def inspect_container(self, name: str) -> ContainerInfo:
        return self._seen

    def exec_in(self, name: str, argv: list[str]) -> bytes:
        assert argv == ["/opt/imagegen/doctor", "--json"]
        if self._answer is None:
            raise ContainerError("it has ended")
        return self._answer


def diagnose(seen: ContainerInfo, answer: bytes | None) -> doctor.Diagnosis:
    engine: Any = EngineInfo(seen, answer)
    return examine_container(engine, "run1", MODELS)


INSIDE = {
    "checks": [{"name": "shm", "status": "error", "sees": "s"}, {"name": "home", "status": "ok", "sees": "h"}],
    "findings": [{"check": "shm", "severity": "error", "text": "t\x1b[31m", "fix": "f"}],
    "machine": {"uid": 0},
}
RUNNING = info(running=True, labels={"dev.imagegen.cell": "small-cpu-py311"}, log="double free or corruption (!prev)")


def test_a_running_container_is_asked_from_inside() -> None:
    found = diagnose(RUNNING, json.dumps(INSIDE).encode())
    assert (found.cell, found.passed, [row.name for row in found.rows]) == (
        "small-cpu-py311",
        False,
        ["ending", "log", "shm", "home"],
    )
    assert found.as_dict()["machine"] == {"uid": 0}
    assert "\x1b" not in found.text()
    assert "error    shm" in found.text()
    assert "error    log" in found.text()


@pytest.mark.parametrize("answer", [None, b"", b"no such file", b"[]", b'{"findings": [{}]}'])
def test_a_container_without_a_doctor_is_looked_at_from_outside(answer: bytes | None) -> None:
    found = diagnose(replace(RUNNING, labels={}, log=""), answer)
    assert found.passed
    assert [(each.check, each.severity) for each in found.findings] == [("ending", "note")]
    assert "an image that imagegen did not build" in found.text()


@given(st.binary(max_size=60))
def test_whatever_a_container_answers_is_read_or_refused(data: bytes) -> None:
    assert parse(data) is None


def test_a_toolkit_is_a_runtime_a_device_or_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    nothing = {"Runtimes": {"runc": {}, "io.containerd.runc.v2": {}}, "DiscoveredDevices": None}
    (found,) = doctor_host.toolkit(nothing)
    assert "nvidia-ctk" in found.fix
    assert not list(doctor_host.toolkit({**nothing, "Runtimes": {"nvidia": {}}}))
    devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]
    assert not list(doctor_host.toolkit({**nothing, "DiscoveredDevices": devices}))
    monkeypatch.setattr(shutil, "which", lambda name: name == "nvidia-container-runtime-hook")
    assert not list(doctor_host.toolkit(nothing))


def test_free_space_is_added_up_on_one_disk() -> None:
    """4.1 GB of wheels take 8.2 GB in the store and 13.1 in the engine, which is why 22 GB do and 20 do not."""
    wheels = int(4.1 * GB)
    assert not list(doctor_host.disk([("/s", 1, 22 * GB), ("/d", 1, 22 * GB)], wheels))
    (found,) = doctor_host.disk([("/s", 1, 20 * GB), ("/d", 1, 20 * GB)], wheels)
    assert "20.00 GB" in found.text
    assert "21.32 GB" in found.text
    (found,) = doctor_host.disk([("/s", 1, 20 * GB), ("/d", 2, 12 * GB)], wheels)
    assert "where /d is" in found.text
    (found,) = doctor_host.disk([("/s", 1, GB)], 0)
    assert "the image takes" not in found.text


def test_the_free_space_of_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    ((path, device, free),) = doctor_host.free_space(tmp_path / "a" / "b", None)
    assert (path, device) == (str(tmp_path / "a" / "b"), tmp_path.stat().st_dev)
    assert free > 0
    assert len(doctor_host.free_space(tmp_path, {"DockerRootDir": str(tmp_path)})) == 2
    elsewhere = str(tmp_path / "on" / "another" / "machine")
    assert len(doctor_host.free_space(tmp_path, {"DockerRootDir": elsewhere})) == 1


def a_cell(tmp_path: Path, cuda: str) -> Cell:
    choice = SMALL.replace("    gpus: [sm_90]", "    axes: {cuda: [cpu, cu130]}\n    gpus: [sm_90]")
    return next(cell for cell in load(tmp_path / "matrix", choice).cells() if cell.cuda == cuda)


def test_what_a_cell_asks_of_a_host_needs_no_lock(tmp_path: Path) -> None:
    rule = Rule("r", {"cuda": ">=13"}, {"driver": ">=580"}, {}, "b", "s", "2026-11-20", "error", "documented", "f")
    cell = replace(a_cell(tmp_path, "cu130"), gpus=(Gpu("sm_90", "9.0", "hopper", ()),))
    facts = doctor_host.facts_of(cell, None, (rule,))
    assert (facts.cell, facts.cuda, facts.gpus, facts.driver) == (cell.id, "13.0", ("9.0",), "580")
    cpu = doctor_host.facts_of(a_cell(tmp_path, "cpu"), None, (rule,))
    assert (cpu.cuda, cpu.driver) == (None, None)


def test_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> Engine:
        raise EngineError("no container engine", why="nothing listens", fix="start that engine")

    old = Machine({}, place="host", driver="570.86.10", devices=("nvidia0",))
    monkeypatch.setattr("imagegen.run.doctor.host.Engine.connect", none)
    monkeypatch.setattr("imagegen.run.doctor.host.snapshot.begin", lambda _: None)
    monkeypatch.setattr("imagegen.run.doctor.host.snapshot.gather", lambda *_, **__: old)
    monkeypatch.setattr(doctor_host, "probe", lambda _: None)
    found = doctor_host.examine_host(Settings.from_environment({"HOME": str(tmp_path)}), Image("x", "13.0", (), "580"))
    assert not found.passed
    worst = {finding.check for finding in found.findings if finding.severity == "error"}
    assert worst == {"engine", "driver"}
    assert "no container engine: nothing listens" in found.text()
    assert [row.name for row in found.rows][:3] == ["engine", "toolkit", "disk"]
    assert {row.name for row in found.rows} >= {check.name for check in CHECKS if "host" in check.places}
    assert found.as_dict()["machine"]["driver"] == "570.86.10"


class Talking:
    """An engine in which a program says `pieces` (kind, bytes) over a real socket, multiplexed as Docker's API does."""

    def __init__(self, *pieces: tuple[int, bytes], ends: bool = True) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.stream = self.ours.makefile("rb", 0)
        self.stream._response = SimpleNamespace(close=lambda: None)  # type: ignore[attr-defined]
        self.api = SimpleNamespace(exec_create=lambda *_: {"Id": "1"}, exec_start=lambda *_, **__: self.stream)
        self.said = b"".join(struct.pack(">BxxxL", kind, len(piece)) + piece for kind, piece in pieces)
        self.ends = ends

    def __enter__(self) -> Any:
        self.writer = threading.Thread(target=self._say)
        self.writer.start()
        return self

    def _say(self) -> None:
        with suppress(OSError):  # the listener is gone
            self.theirs.sendall(self.said)
            if self.ends:
                self.theirs.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_: object) -> None:
        self.writer.join(30)
        self.theirs.close()
        assert self.ours.fileno() == -1, "the connection was left open"


DOCTOR = ["/opt/imagegen/doctor"]


def test_what_a_program_in_a_container_prints() -> None:
    """Also where its container ends under it, and the engine knows no exit code."""
    with Talking((STDOUT, b"[1, "), (STDERR, b"killed"), (STDOUT, b"2]")) as client:
        assert exec_in(client, "run1", DOCTOR) == b"[1, 2]"
    with Talking((STDERR, b"killed")) as client:
        assert exec_in(client, "run1", DOCTOR) == b""


def test_a_program_in_a_container_may_hang_or_talk_for_ever() -> None:
    with (
        Talking((STDOUT, b"x"), ends=False) as client,
        raises("engine-exec-failed"),
    ):
        exec_in(client, "run1", DOCTOR, patience=0.1)
    with (
        Talking(*[(STDOUT, b"x" * 4096)] * 1000, ends=False) as client,
        raises("engine-exec-failed"),
    ):
        exec_in(client, "run1", DOCTOR)


def test_an_engine_that_goes_away_under_a_program_is_reported() -> None:
    """Closed with something unread, a socket is reset."""
    with Talking((STDOUT, b"x"), ends=False) as client:
        client.ours.send(b"unread")
        client.writer.join()
        client.theirs.close()
        with raises("engine-lost"):
            exec_in(client, "run1", DOCTOR)
