"""The entry point as a process: startup checks go to stderr, and the command runs as without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from imagegen.image.layers import support
from tests.support.tiny_lock import CUDA, LOCK

PROBE = """
import os, sys
status = open("/proc/self/status").read().splitlines()
print([line for line in status if line[:6] in ("SigBlk", "SigIgn", "SigCgt")], sorted(os.listdir("/proc/self/fd")))
print(os.getcwd(), oct(os.umask(0)), sys.stdin.read(), sorted(open("/proc/self/environ").read().split(chr(0))))
"""
PLAIN = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """/opt/imagegen of an image, for the interpreter of the tests."""
    lock = support.support_files(LOCK)
    for file in lock:
        path = tmp_path / Path(file.path).relative_to(support.ROOT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content.replace(b"#!/usr/bin/python3.11", b"#!" + sys.executable.encode()))
        path.chmod(0o755 if file.executable else 0o644)
    return tmp_path


@pytest.fixture
def run(image: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def through(*command: str, env: Mapping[str, str] = PLAIN, stdin: str = "") -> subprocess.CompletedProcess[str]:
        argv = [str(image / "entrypoint"), *command]
        return subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, check=False)

    return through


Run = Callable[..., subprocess.CompletedProcess[str]]


def test_it_prints_on_stderr_and_the_rest_is_the_commands(run: Run) -> None:
    done = run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    greeting, silence, last = done.stderr.splitlines()
    assert greeting == "imagegen: tiny-cpu-py311 (torch 2.13.0+cpu) on the CPU"
    assert "IMAGEGEN_PREFLIGHT=0" in silence
    assert last == "err"


def test_it_is_silent_when_configured_so(run: Run) -> None:
    done = run("sh", "-c", "echo out", env={**PLAIN, "IMAGEGEN_PREFLIGHT": "0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")


@pytest.mark.parametrize(
    "env", [PLAIN, {"PATH": PLAIN["PATH"]}, {**PLAIN, "LANG": "C", "odd.name": "1"}, {**PLAIN, "LC_CTYPE": "C.UTF-8"}]
)
def test_the_command_is_as_without_it(run: Run, env: dict[str, str]) -> None:
    argv = [sys.executable, "-c", PROBE]
    alone = subprocess.run(argv, env=env, input="typed", capture_output=True, text=True, check=True)
    assert run(*argv, env=env, stdin="typed").stdout == alone.stdout


def test_the_command_takes_its_place(image: Path) -> None:
    argv = [str(image / "entrypoint"), "sh", "-c", "echo $$"]
    with subprocess.Popen(argv, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.communicate()[0] == f"{process.pid}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGUSR1])
def test_signals_reach_the_command(image: Path, number: signal.Signals) -> None:
    argv = [str(image / "entrypoint"), "sh", "-c", "echo ready; exec sleep 60"]
    with subprocess.Popen(argv, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(10) == -number


def test_a_signal_before_the_command_ends_it(image: Path) -> None:
    argv = [str(image / "entrypoint"), "sh", "-c", "echo ready"]
    with (
        full_pipe() as full,
        subprocess.Popen(argv, env=PLAIN, stdout=subprocess.PIPE, stderr=full, text=True) as process,
    ):
        wait_for(lambda: len(children(process.pid)) == 1)  # it waits for its child, which cannot write
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
        assert process.stdout
        assert process.stdout.read() == ""


def test_startup_checks_that_hang_are_not_waited_for(image: Path) -> None:
    entrypoint = image / "entrypoint"
    entrypoint.write_bytes(entrypoint.read_bytes().replace(b"PATIENCE = 5.0", b"PATIENCE = 0.3"))
    start = time.monotonic()
    argv = [str(entrypoint), "sh", "-c", "echo out; exit 3"]
    with full_pipe() as full:
        done = subprocess.run(argv, env=PLAIN, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert time.monotonic() - start > 0.3


@pytest.mark.parametrize("broken", ["image.json", "preflight/formatting.py", "preflight/__init__.py"])
def test_a_broken_preflight_does_not_block_the_command(run: Run, image: Path, broken: str) -> None:
    (image / broken).write_text("{")
    done = run("sh", "-c", "echo out; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert done.stderr.startswith("imagegen: the preflight failed: ")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "2>/dev/full", "0>&1"])
def test_odd_streams_do_not_block_the_command(image: Path, closed: str, tmp_path: Path) -> None:
    line = f"{image / 'entrypoint'} sh -c 'touch {tmp_path}/ran; exit 3' {closed}"
    assert subprocess.run(["sh", "-c", line], env=PLAIN, check=False, capture_output=True).returncode == 3
    assert (tmp_path / "ran").exists()


def test_what_cannot_be_run_is_said_as_shells_say_it(run: Run) -> None:
    for command, code, said in (
        (["no-such-program"], 127, "no-such-program: No such file or directory"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        ([], 127, "no command"),
    ):
        done = run(*command, env={**PLAIN, "IMAGEGEN_PREFLIGHT": "0"})
        assert (done.returncode, done.stderr) == (code, f"imagegen: {said}\n")


def test_an_image_for_gpus_warns_that_there_is_none(image: Path, run: Run) -> None:
    facts = next(file for file in support.support_files(CUDA) if file.path.endswith("image.json"))
    (image / "image.json").write_bytes(facts.content)
    done = run("true")
    assert done.returncode == 0
    assert "imagegen: tiny-cu130-py311 (torch 2.13.0+cpu) on no GPU" in done.stderr
    assert "docker run --gpus all" in done.stderr


def test_the_doctor_in_the_image(image: Path) -> None:
    doctor = str(image / "doctor")
    env = {**PLAIN, "WORLD_SIZE": "", "HOME": str(image)}
    table = subprocess.run([doctor], env=env, capture_output=True, text=True, check=False)
    assert (table.returncode, table.stderr) == (0, "")
    assert "warning empty WORLD_SIZE is set and empty" in " ".join(table.stdout.split())
    found = subprocess.run([doctor, "--json"], env=env, capture_output=True, text=True, check=True).stdout
    assert '"check": "empty"' in found
    assert subprocess.run([doctor, "--help"], env=env, capture_output=True, check=False).returncode == 64


@contextmanager
def full_pipe() -> Iterator[int]:
    """A full pipe that nothing reads. Closed at the end, so that a process blocked in a write to it ends."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    try:
        yield write
    finally:
        os.close(write)
        os.close(read)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
