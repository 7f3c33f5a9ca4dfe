"""Measure a run on this machine: seconds, memory of its process tree, bytes over the network and onto the disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

DAEMONS = {"dockerd", "containerd", "buildkitd"}


@dataclass
class Cost:
    """The cost of one run. `peak` is the process tree's memory in bytes (PSS: shared pages once); 0 without
    measurement.

    `cpu` is the processor time in seconds of the processes of the block that have ended; with measurement, that of
    sandboxed processes is in it (`sandboxed` alone). `engine` is that of Docker's daemons, with the processes of
    theirs that have ended. `received` and `written` are bytes of the whole machine (the default route's interface, all
    disks): engine and containers are in them, and so is whatever else runs beside.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    sandboxed: float = 0.0
    engine: float = 0.0
    peak: int = 0
    received: int = 0
    written: int = 0


def run(
    command: Sequence[str | Path], env: Mapping[str, str], *, cwd: Path | None = None, watch: bool = False
) -> tuple[Cost, str]:
    """(cost, stderr) of a command; ends the benchmark with its output if it fails."""
    with metered() as cost:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        watcher = threading.Thread(target=_watch, args=(process, cost))
        if watch:
            watcher.start()
        said = process.communicate()[1]
    if watch:
        watcher.join()
        cost.cpu += cost.sandboxed
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {process.returncode}\n{said}")
    return cost, said


@contextmanager
def metered() -> Iterator[Cost]:
    """Time, network and disk of the block; what was not yet on the disk before does not count."""
    os.sync()
    cost, start, received, written = Cost(), time.monotonic(), _received(), _written()
    cpu, engine = _children(), _daemons()
    yield cost
    cost.seconds = time.monotonic() - start
    cost.cpu, cost.engine = _children() - cpu, _daemons() - engine
    os.sync()
    cost.received, cost.written = _received() - received, _written() - written


def _watch(process: subprocess.Popen[str], cost: Cost) -> None:
    sandboxed: dict[int, float] = {}
    while process.poll() is None:
        tree = _tree(process.pid)
        cost.peak = max(cost.peak, _memory(tree))
        sandboxed |= _sandboxed(tree)
        time.sleep(0.1)
    cost.sandboxed = sum(sandboxed.values())


def _memory(pids: Iterable[int]) -> int:
    total = 0
    for each in pids:
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return total


def _sandboxed(pids: Iterable[int]) -> dict[int, float]:
    """Return the processor time, in seconds, of those of the processes that bubblewrap started.

    It ends without waiting for them, so that the time of none of them counts as that of its parent.
    """
    found = {pid: stat for pid in pids if (stat := _stat(Path(f"/proc/{pid}/stat")))}
    inside = {pid for pid, stat in found.items() if stat.parent in found and found[stat.parent].name == "bwrap"}
    return {pid: found[pid].seconds for pid in inside if found[pid].name != "bwrap"}


class _Stat(NamedTuple):
    """A process; `seconds` are of processor time, with that of its ended children (proc(5): stat)."""

    name: str
    parent: int
    seconds: float


def _stat(path: Path) -> _Stat | None:
    """Return what the file says; None where the process has ended."""
    try:
        name, _, rest = path.read_text().partition("(")[2].rpartition(")")
    except OSError:
        return None
    fields = rest.split()
    ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return _Stat(name, int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [each for child in task.read_text().split() for each in _tree(int(child))]
        except OSError:
            continue
    return found


def _children() -> float:
    """Return the processor time of this process's ended descendants, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _daemons() -> float:
    """Return the processor time of Docker's daemons and of their ended descendants, in seconds."""
    found = filter(None, map(_stat, Path("/proc").glob("[0-9]*/stat")))
    return sum(each.seconds for each in found if each.name in DAEMONS)


def _received() -> int:
    """Return the bytes received by the default route's interface (proc(5): /proc/net/route, /proc/net/dev)."""
    routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    name = next(route[0] for route in routes if route[1] == "00000000")
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line.split(":")[1].split()[0] for line in lines if line.strip().startswith(f"{name}:")))


def _written() -> int:
    """Sectors of 512 bytes onto whole disks (Documentation/admin-guide/iostats.rst, field 7)."""
    rows = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    disks = {path.name for path in Path("/sys/block").iterdir() if not path.name.startswith("loop")}
    return 512 * sum(int(row[9]) for row in rows if row[2] in disks)
