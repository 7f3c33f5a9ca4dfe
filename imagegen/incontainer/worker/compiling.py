"""One attempt: the backend in a process of its own, its output read, its memory watched, its end understood."""

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
from .causes import Failure, diagnose, telling
from .memory import family, own_group
from .watch import Watch

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
    log: list[str]  # the lines that may tell why, and the end of the output


class _StoppedError(Exception):
    """We were asked to end."""


def tell(event: Mapping[str, Any]) -> None:
    # One write: two threads speak here.
    sys.stdout.write(f"@imagegen {json.dumps(event)}\n")
    sys.stdout.flush()


def environment(spec: Mapping[str, Any], throttle: Throttle, work: Path) -> dict[str, str]:
    """All of a build's environment. What the caller's own has says nothing here, but for the build's description."""
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
        "MAX_JOBS": jobs,  # torch's extensions and CMake hear it even where the recipe names no variable
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
    """Let the backend build the wheel into work/dist."""
    env = environment(spec, throttle, work)
    toolchain = _toolchain(env)
    count = units.Count(units.kept(work / "source"), spec["units"])
    group = own_group()
    kills, peak = (group.kills(), group.peak()) if group else (0, None)
    tell(
        {"event": "start", "name": spec["name"], "version": spec["version"], "done": count.done, "total": count.total}
        | {"jobs": throttle.jobs, "threads": throttle.threads}
    )
    before = _cpu()
    with _orphans_come_here(), Watch(os.getpid(), count, tell) as watch, (work / "build.log").open("ab") as log:
        code, tail, signs, stopped = _run(env, work, count, watch, log)
    kills = group.kills() - kills if group else 0
    after = group.peak() if group else None
    record = {
        "done": count.done,
        "total": count.total,
        "compiled": count.compiled,
        "jobs": throttle.jobs,
        "threads": throttle.threads,
        "seconds": round(watch.seconds, 1),
        "cpu_seconds": round(_cpu() - before, 1),
        "memory": watch.peak,
        "largest": watch.largest,
        "process": watch.process,
        # A group that has used more before says nothing about this build.
        "group_peak": after if after and peak is not None and after > peak else None,
    }
    failed = code != 0 or stopped
    failure = diagnose(code, [*signs, *tail], kills, watch.process, stopped=stopped) if failed else None
    return Attempt(record, toolchain, failure, [*signs, "...", *list(tail)[-_SHOWN:]])


def _run(
    env: Mapping[str, str], work: Path, count: units.Count, watch: Watch, log: IO[bytes]
) -> tuple[int, deque[str], list[str], bool]:
    """(exit code, the end of the output, lines that tell why, whether we were asked to end)."""
    tail: deque[str] = deque(maxlen=_TAIL)
    signs: list[str] = []
    process = None
    with _signals():
        try:
            process = _start(env, work)
            for raw in process.stdout or ():
                log.write(raw)
                line = raw.decode("utf-8", "replace").rstrip()
                if count.read(line):
                    watch.progress()
                line = units.plain(line)[:_WIDTH]
                tail.append(line)
                if len(signs) < _SHOWN and telling(line):
                    signs.append(line)
            return process.wait(), tail, signs, False
        except _StoppedError:
            return _end(process) if process else 0, tail, signs, True


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
    threading.Thread(target=_end_what_outlives, args=(process,), daemon=True).start()
    return process


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT become an exception of the main thread, once."""

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
def _orphans_come_here() -> Iterator[None]:
    """Descendants whose parents end become our children, so that none is lost of sight. prctl(2)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _end_family()


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ask first: ninja removes what is half written and keeps its log."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    _end_family()
    return process.wait()


def _end_what_outlives(process: subprocess.Popen[bytes]) -> None:
    """What the backend leaves running would hold its output open for ever."""
    process.wait()
    time.sleep(0.2)
    _end_family()


def _end_family() -> None:
    """Until a look finds none that was not killed: a process may start another between a look and its end."""
    killed = {os.getpid()}
    while left := [process.pid for process in family(os.getpid()) if process.pid not in killed]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _toolchain(env: Mapping[str, str]) -> dict[str, str]:
    """Program -> the line that says its version; what is not there is left out."""
    found = {"python": sys.version.split()[0]}
    for name, command in _VERSIONS.items():
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=60, check=True).stdout
            lines = [line for line in said.splitlines() if name != "nvcc" or "release" in line]
            found[name] = lines[0].strip() if lines else ""
    return found
