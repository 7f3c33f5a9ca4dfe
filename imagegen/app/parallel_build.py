"""Build several cells in parallel, each in a process, as many at a time as cores, memory and disk allow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from imagegen.app.build import BuildOptions
from imagegen.app.lock_files import LockFiles
from imagegen.core.data import parse_json
from imagegen.core.errors import IncompatibleError, LockError
from imagegen.core.progress import Progress
from imagegen.core.text import counted
from imagegen.spec.model import Cell

PROGRAM = (sys.executable, "-P", "-c", "from imagegen.cli.main import main; main()")
# A build uses two cores for most of its time. In addition to imagegen, containers of its smoke checks have up to four
# processes of 1 GB (bench/journal/2026-11-22-two-builds.md).
_CORES, _MEMORY = 2, 6_000_000_000
# Bytes on the disk for each byte of wheels, in the store and in the engine (imagegen.run.doctor.diagnosis).
_DISK = 5.2


@dataclass(frozen=True)
class BuildResult:
    """The result of building a cell: its entry in the JSON of a build (`built`), or the first line of its error."""

    cell: str
    code: int  # exit code
    seconds: float
    built: Mapping[str, Any] | None
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry in the JSON of several builds."""
        entry = dict(self.built) if self.built else {"cell": self.cell, "error": self.error, "exit_code": self.code}
        return {**entry, "seconds": round(self.seconds, 1)}


class BuildProcesses:
    """The running processes of builds in a project, whose store is at `store`."""

    def __init__(self, progress: Progress, options: Sequence[str], project: Path, store: Path) -> None:
        self._progress, self._options, self._project, self._store = progress, options, project, store
        self.running: dict[str, subprocess.Popen[str]] = {}
        self._stopped = False

    def run(self, cell: str) -> BuildResult:
        """Build a cell; its messages are printed after its name."""
        argv = [*PROGRAM, "--project", str(self._project), "build", cell, "--json", *self._options]
        start = time.monotonic()
        lines: list[str] = []
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            self.running[cell] = process
            if self._stopped:
                process.terminate()
            relay = Thread(target=self._relay, args=(cell, process, lines))
            relay.start()
            output = process.stdout.read() if process.stdout else ""
            code = process.wait()
            code = 128 - code if code < 0 else code  # a signal, as in shells
            relay.join()
        del self.running[cell]
        built = _parse(output) if code == 0 else None
        return BuildResult(
            cell, code or (0 if built else 70), time.monotonic() - start, built, "" if built else _error(lines)
        )

    def _relay(self, cell: str, process: subprocess.Popen[str], lines: list[str]) -> None:
        for line in process.stderr or ():
            lines.append(line.rstrip())
            self._progress.say(f"{cell}: {lines[-1]}")

    def stop(self) -> None:
        """Terminate all processes, which then remove their containers and temporary files."""
        self._stopped = True
        for process in list(self.running.values()):
            process.terminate()

    def free(self) -> int:
        """Return the free bytes of the store's disk."""
        return shutil.disk_usage(self._store).free


def _parse(output: str) -> Mapping[str, Any] | None:
    """Return the only entry of a build's JSON; None for any other output."""
    try:
        (entry,) = parse_json(output)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _error(lines: Sequence[str]) -> str:
    """Return the line that names the error, which is the last line without indentation."""
    return next((line for line in reversed(lines) if line and not line.startswith(" ")), "no message")


def parallel_count(count: int, cores: int, memory: int) -> int:
    """Return the number of `count` builds that run at a time; `memory` is the available memory in bytes."""
    return max(1, min(count, cores // _CORES, memory // _MEMORY))


def run_builds(sizes: Mapping[str, int], most: int, builds: BuildProcesses) -> Iterator[BuildResult]:
    """Run the builds of `sizes` (cell -> bytes of disk) in order, at most `most` at a time; yield finished builds.

    If other builds run, a build starts only if the free bytes exceed the sum of their sizes and its own. The first
    build always starts, since a build checks the disk itself. An interruption stops the running builds, and waits for
    them.
    """
    waiting = list(sizes)
    running: dict[Future[BuildResult], str] = {}
    with ThreadPoolExecutor(most) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    used = sum(sizes[cell] for cell in running.values())
                    if running and builds.free() < used + sizes[waiting[0]]:
                        break
                    cell = waiting.pop(0)
                    running[pool.submit(builds.run, cell)] = cell
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    del running[future]
                    yield future.result()
        except BaseException:
            builds.stop()
            raise


def build_cells(lock_files: LockFiles, cells: Sequence[Cell], options: BuildOptions) -> list[BuildResult]:
    """Build the cells in parallel. A cell whose lock cannot be built has a result with that error."""
    results: dict[str, BuildResult] = {}
    sizes: dict[str, int] = {}
    for cell in cells:
        try:
            locks = [lock for _, lock in lock_files.fresh(cell).by_cell(cell)]
            files = {wheel.file.digest: wheel.file.estimate for lock in locks for wheel in lock.wheels}
            sizes[cell.id] = int(_DISK * sum(files.values()))
        except (LockError, IncompatibleError) as error:
            lock_files.project.progress.say(f"error[{error.code}]: {error}")
            results[cell.id] = BuildResult(cell.id, error.exit_code, 0.0, None, f"error[{error.code}]: {error.what}")
    most = parallel_count(len(sizes), len(os.sched_getaffinity(0)), _available_memory())
    project = lock_files.project
    builds = BuildProcesses(project.progress, _flags(options), project.directory, project.store.root)
    project.progress.say(f"{counted(len(sizes), 'build')}, {most} at a time")
    for result in run_builds(sizes, most, builds):
        results[result.cell] = result
    return [results[cell.id] for cell in cells]


def _flags(options: BuildOptions) -> list[str]:
    """Return the flags of `imagegen build` for the options."""
    flags = {
        "--no-test": not options.test,
        "--retest": options.retest,
        "--no-audit": not options.audit,
        "--require-gpu": options.require_gpu,
        "--scratch-base": options.scratch_base,
    }
    builder = ["--builder", options.builder] if options.builder else []
    return [flag for flag, is_set in flags.items() if is_set] + builder


def _available_memory() -> int:
    """Return MemAvailable of /proc/meminfo (proc(5)) in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
