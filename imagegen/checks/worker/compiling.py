"""One build attempt: run the backend in a process of its own, read its output, sample its memory, diagnose its end."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import units
from .causes import Failure, diagnose, is_diagnostic
from .memory import own_cgroup, process_tree
from .monitor import ProcessMonitor

_TAIL = 2000  # lines of output that are kept for the diagnosis
_SHOWN = 30  # lines of either kind that are printed where the build fails
_WIDTH = 2000  # characters of a line that are kept: a compiler's command has many
_GRACE = 15.0  # seconds that children have to end by themselves
_PR_SET_CHILD_SUBREAPER = 36
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSIONS = {"gcc": ["gcc", "--version"], "g++": ["g++", "--version"], "ld": ["ld", "--version"]}
_VERSIONS |= {"nvcc": ["nvcc", "--version"], "ninja": ["ninja", "--version"], "cmake": ["cmake", "--version"]}


@dataclass(frozen=True)
class Throttle:
    jobs: int
    threads: int


@dataclass(frozen=True)
class Attempt:
    record: dict[str, Any]
    toolchain: dict[str, str]
    failure: Failure | None
    log: list[str]  # the lines that may explain the failure, and the end of the output


class _StoppedError(Exception):
    """The build was asked to stop."""


def emit(event: Mapping[str, Any]) -> None:
    # One write: two threads speak here.
    sys.stdout.write(f"@imagegen {json.dumps(event)}\n")
    sys.stdout.flush()


def environment(spec: Mapping[str, Any], throttle: Throttle, work: Path) -> dict[str, str]:
    """Return a build's whole environment; the caller's own is not inherited."""
    given: dict[str, str] = spec["env"]
    cuda = given.get("CUDA_HOME", "/usr/local/cuda")
    path = [work / "programs", Path(sys.executable).parent, Path(cuda, "bin"), given.get("PATH", _PATH)]
    jobs, threads = str(throttle.jobs), str(throttle.threads)
    made = {
        "HOME": str(work / "home"),
        "LANG": "C.UTF-8",
        "TMPDIR": str(work / "tmp"),
        "PYTHONPATH": str(work / "requires"),
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "SOURCE_DATE_EPOCH": str(spec["epoch"]),
        "CUDA_HOME": cuda,
        "MAX_JOBS": jobs,  # torch's extensions and CMake read it even if the recipe names no variable
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        **given,
        # Objects name nvcc's intermediate files. Beside the object they have no process id in their names.
        "NVCC_APPEND_FLAGS": f"{given.get('NVCC_APPEND_FLAGS', '')} --objdir-as-tempdir".strip(),
        "PATH": ":".join(map(str, path)),
        "NINJA_STATUS": units.STATUS,
    }
    if not Path(made["CUDA_HOME"]).is_dir() and "CUDA_HOME" not in given:
        del made["CUDA_HOME"]
    made |= {spec["jobs"]: jobs} if spec["jobs"] else {}
    made |= {spec["threads"]: threads} if spec["threads"] else {}
    return made


def compile_wheel(spec: Mapping[str, Any], throttle: Throttle, work: Path) -> Attempt:
    """Run the backend, which writes the wheel to work/dist."""
    env = environment(spec, throttle, work)
    toolchain = _toolchain(env)
    count = units.UnitCounter(units.kept(work / "source"), spec["units"])
    group = own_cgroup()
    kills, peak = (group.kills(), group.peak()) if group else (0, None)
    emit(
        {"event": "start", "name": spec["name"], "version": spec["version"], "done": count.done, "total": count.total}
        | {"jobs": throttle.jobs, "threads": throttle.threads}
    )
    before = _cpu()
    with _adopt_orphans(), ProcessMonitor(os.getpid(), count, emit) as monitor, (work / "build.log").open("ab") as log:
        code, tail, diagnostics, stopped = _run(env, work, count, monitor, log)
    kills = group.kills() - kills if group else 0
    after = group.peak() if group else None
    record = {
        "done": count.done,
        "total": count.total,
        "compiled": count.compiled,
        "jobs": throttle.jobs,
        "threads": throttle.threads,
        "seconds": round(monitor.seconds, 1),
        "cpu_seconds": round(_cpu() - before, 1),
        "memory": monitor.peak,
        "largest": monitor.largest,
        "process": monitor.process,
        # A group that has used more before says nothing about this build.
        "group_peak": after if after and peak is not None and after > peak else None,
    }
    failed = code != 0 or stopped
    failure = diagnose(code, [*diagnostics, *tail], kills, monitor.process, stopped=stopped) if failed else None
    return Attempt(record, toolchain, failure, [*diagnostics, "...", *list(tail)[-_SHOWN:]])


def _run(
    env: Mapping[str, str], work: Path, count: units.UnitCounter, monitor: ProcessMonitor, log: IO[bytes]
) -> tuple[int, deque[str], list[str], bool]:
    """Return (exit code, end of the output, diagnostic lines, whether the build was asked to stop)."""
    tail: deque[str] = deque(maxlen=_TAIL)
    diagnostics: list[str] = []
    process = None
    with _signals():
        try:
            process = _start(env, work)
            for raw in process.stdout or ():
                log.write(raw)
                line = raw.decode("utf-8", "replace").rstrip()
                if count.read(line):
                    monitor.progress()
                line = units.plain(line)[:_WIDTH]
                tail.append(line)
                if len(diagnostics) < _SHOWN and is_diagnostic(line):
                    diagnostics.append(line)
            return process.wait(), tail, diagnostics, False
        except _StoppedError:
            return _stop(process) if process else 0, tail, diagnostics, True


def _start(env: Mapping[str, str], work: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("hook.py")), str(work / "dist")],
        cwd=work / "source",
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    threading.Thread(target=_kill_remaining, args=(process,), daemon=True).start()
    return process


@contextmanager
def _signals() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into an exception of the main thread, once."""

    def stop(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise _StoppedError

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _adopt_orphans() -> Iterator[None]:
    """Make descendants whose parents end children of this process, so that all are found. prctl(2)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _kill_descendants()


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Send SIGINT first: ninja then removes partial outputs and keeps its log."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    _kill_descendants()
    return process.wait()


def _kill_remaining(process: subprocess.Popen[bytes]) -> None:
    """Kill processes that the backend left running: they would keep its output open."""
    process.wait()
    time.sleep(0.2)
    _kill_descendants()


def _kill_descendants() -> None:
    """Kill descendants until none is left that was not killed: a process may start another before its own end."""
    killed = {os.getpid()}
    while left := [process.pid for process in process_tree(os.getpid()) if process.pid not in killed]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _toolchain(env: Mapping[str, str]) -> dict[str, str]:
    """Return program -> version line; missing programs are left out."""
    found = {"python": sys.version.split()[0]}
    for name, command in _VERSIONS.items():
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=60, check=True).stdout
            lines = [line for line in said.splitlines() if name != "nvcc" or "release" in line]
            found[name] = lines[0].strip() if lines else ""
    return found
