"""End processes, and remove the mounts, control groups and sockets that they leave. Source: proc(5), cgroups(7)."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_STOP_TIMEOUT = 20  # seconds between asking a process to end and ending it


def end_all(directory: Path) -> None:
    """End every process whose program is in `directory`: send SIGTERM, and SIGKILL after some seconds.

    Programs identify the processes, because another process may have a recorded id by now.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _running_from(directory):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + _STOP_TIMEOUT
        while _running_from(directory) and time.monotonic() < deadline:
            time.sleep(0.05)


def _running_from(directory: Path) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                program = os.readlink(entry / "exe")
            except OSError:  # an ended process, or a kernel thread
                continue
            if Path(program).is_relative_to(directory):
                pids.append(int(entry.name))
    return pids


def mounts_under(*directories: Path) -> list[str]:
    """Return the mount points at or below the directories, innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in reversed(points) if any(Path(point).is_relative_to(d) for d in directories)]


def unmount_all(*directories: Path) -> None:
    for point in mounts_under(*directories):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def cgroups(name: str) -> list[str]:
    """Return the control groups of that name at the top of every hierarchy, v1 or v2."""
    root = Path("/sys/fs/cgroup")
    return [str(path) for path in (root / name, *root.glob(f"*/{name}")) if path.is_dir()]


def kill_in_cgroups(name: str) -> None:
    """Kill the processes in control groups of that name: containers of an engine that was killed."""
    deadline = time.monotonic() + _STOP_TIMEOUT
    while (pids := _members(name)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _members(name: str) -> set[int]:
    """Return the processes in control groups of that name, or below, that this process namespace has an id for."""
    pids: set[int] = set()
    for directory in (directory for top in cgroups(name) for directory, _, _ in os.walk(top)):
        with suppress(OSError):  # the group was removed
            pids |= {int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()}
    return pids - {0}


def remove_cgroups(name: str) -> None:
    for top in cgroups(name):
        for directory, _, _ in os.walk(top, topdown=False):
            remove_if_empty(Path(directory))


def remove_dead_sockets(directory: Path) -> None:
    """Remove sockets at which no process listens: killed shims of containerd leave theirs."""
    for path in directory.glob("*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()


def remove_if_empty(directory: Path) -> None:
    """Remove a directory unless it has entries."""
    try:
        directory.rmdir()
    except OSError:
        return
