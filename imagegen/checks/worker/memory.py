"""Memory available to a build, and memory that it uses.

The limits of control groups precede the machine's memory: a container may use a small part of a large host.
Sources: the kernel's admin-guide/cgroup-v1/memory and cgroup-v2, proc(5), cgroups(7).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60  # version 1 has no word for it but a number near 2**63


@dataclass(frozen=True)
class Cgroup:
    """A memory control group; `folders` are its own and those of its visible ancestors, the innermost first."""

    version: int
    folders: tuple[Path, ...]

    def limit(self) -> int | None:
        """Return the lowest limit in bytes; None if there is none."""
        if self.version == 2:
            found = [_number(folder / "memory.max") for folder in self.folders]
        else:
            found = [_number(folder / "memory.limit_in_bytes") for folder in self.folders]
            found += [_field(folder / "memory.stat", "hierarchical_memory_limit") for folder in self.folders]
        return min((limit for limit in found if limit is not None and limit < UNLIMITED), default=None)

    def headroom(self) -> int | None:
        """Return the bytes left below the tightest limit; inactive file pages count as free."""
        names = ("memory.max", "memory.current", "inactive_file")
        if self.version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        left = []
        for folder in self.folders:
            limit, used = _number(folder / names[0]), _number(folder / names[1])
            if limit is not None and limit < UNLIMITED and used is not None:
                left.append(limit - used + (_field(folder / "memory.stat", names[2]) or 0))
        return max(0, min(left)) if left else None

    def swap(self) -> int | None:
        """Return the bytes of swap that a limit allows; None without a limit."""
        if self.version == 2:
            found = [_number(folder / "memory.swap.max") for folder in self.folders]
        else:
            found = []
            for folder in self.folders:
                memory, both = (
                    _number(folder / "memory.limit_in_bytes"),
                    _number(folder / "memory.memsw.limit_in_bytes"),
                )
                if memory is not None and both is not None and both < UNLIMITED:
                    found.append(both - memory)
        return min((limit for limit in found if limit is not None and limit < UNLIMITED), default=None)

    def peak(self) -> int | None:
        """Return the highest use in bytes, page cache included; None if the kernel does not report it."""
        return _number(self.folders[0] / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))

    def kills(self) -> int:
        """Return how many processes of this group the kernel's OOM killer ended; 0 if it does not report that."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _field(self.folders[0] / name, "oom_kill") or 0


def own_cgroup(proc: Path = Path("/proc")) -> Cgroup | None:
    """Return this process's memory control group; None if memory is not controlled or the groups are not mounted.

    Version 1 first: where both are mounted and version 1 has the memory controller, version 2 cannot have it.
    """
    try:
        memberships = (proc / "self/cgroup").read_text().splitlines()
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    found = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found[1] = path
        elif not controllers:
            found[2] = path
    for version, path in sorted(found.items()):
        for root, place in _mounted(mounts, version):
            folders = tuple(folder for folder in _upwards(place, root, path) if folder.is_dir())
            measured = "memory.limit_in_bytes" if version == 1 else "memory.current"
            if folders and any((folder / measured).exists() for folder in folders):
                return Cgroup(version, folders)
    return None


def _mounted(mounts: Iterable[str], version: int) -> Iterator[tuple[str, Path]]:
    """Yield (the group at the mount's root, the mount point) from the lines of mountinfo."""
    for line in mounts:
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        is_memory = kind == "cgroup" and "memory" in options.replace(" ", ",").split(",")
        if is_memory if version == 1 else kind == "cgroup2":
            fields = left.split(" ")
            yield fields[3], Path(fields[4].encode().decode("unicode_escape"))


def _upwards(place: Path, root: str, path: str) -> Iterator[Path]:
    """Yield the folder of the group `path` and those above it. A container's mount may show a part of the tree."""
    inside = os.path.relpath(path, root) if path.startswith(root) else "."
    folder = place / ("." if inside.startswith("..") else inside)
    while folder != place and place in folder.parents:
        yield folder
        folder = folder.parent
    yield place


def machine(proc: Path = Path("/proc"), sys: Path = Path("/sys/fs/cgroup")) -> dict[str, int | None]:
    """Return cores, and bytes of memory that a build may use at all and that are available now.

    `limit` is a control group's (None: there is none), `swap` what the build may swap to.
    """
    info = _meminfo(proc)
    group = own_cgroup(proc)
    limit, headroom, swap = (group.limit(), group.headroom(), group.swap()) if group else (None, None, None)
    total = info.get("MemTotal", 0)
    available = info.get("MemAvailable", info.get("MemFree", 0))
    return {
        "cores": _cores(proc, sys),
        "memory": min(total, limit) if limit else total,
        "available": available if headroom is None else min(available, headroom),
        "limit": limit,
        "swap": info.get("SwapFree", 0) if swap is None else min(info.get("SwapFree", 0), swap),
    }


def _cores(proc: Path, sys: Path) -> int:
    """Return the CPUs that this process may run on, fewer if a control group's quota allows less time."""
    cores = len(os.sched_getaffinity(0))
    quotas = []
    paths = {line.split(":", 2)[2] for line in _lines(proc / "self/cgroup")} | {"/"}
    for path in paths:
        for folder in (sys / path.lstrip("/"), sys / "unified" / path.lstrip("/"), sys / "cpu" / path.lstrip("/")):
            quota, _, period = next(iter(_lines(folder / "cpu.max")), "max").partition(" ")
            if quota != "max" and period:
                quotas.append(int(quota) / int(period))
            quota_v1, period_v1 = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            if quota_v1 and quota_v1 > 0 and period_v1:
                quotas.append(quota_v1 / period_v1)
    return max(1, min([cores, *map(math.floor, quotas)]))


@dataclass(frozen=True)
class Process:
    """A sample of a process."""

    pid: int
    parent: int
    name: str
    memory: int  # bytes that are resident and its own; pages of files can be taken back and are shared besides


def process_tree(root: int, proc: Path = Path("/proc")) -> list[Process]:
    """Return the process `root` and all its descendants."""
    every = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and (process := _process(entry)):
            every[process.pid] = process
    children: dict[int, list[Process]] = {}
    for process in every.values():
        children.setdefault(process.parent, []).append(process)
    found, waiting = [], [every[root]] if root in every else []
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children.get(process.pid, [])
    return found


def _process(entry: Path) -> Process | None:
    """Parse stat, whose second field is a name in brackets with any characters, and statm; None: it has ended."""
    try:
        text = (entry / "stat").read_text(errors="replace")
        _, resident, shared, *_ = map(int, (entry / "statm").read_text().split())
    except (OSError, ValueError):
        return None
    before, _, after = text.rpartition(")")
    return Process(int(entry.name), int(after.split()[1]), before.partition("(")[2], (resident - shared) * _PAGE)


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _meminfo(proc: Path) -> dict[str, int]:
    found = {}
    for line in _lines(proc / "meminfo"):
        name, _, rest = line.partition(":")
        if rest.split():
            found[name] = int(rest.split()[0]) * 1024
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _field(path: Path, name: str) -> int | None:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
