"""Run a program that may hang, even in the kernel, where it cannot be killed. Imports faster than `subprocess`."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_GRACE = 0.2  # seconds for a killed program to be gone; one that hangs in the kernel stays, and is not waited for


class Program(NamedTuple):
    """A started program; `out` is the descriptor of its stdout and stderr."""

    pid: int
    out: int


def start(argv: Sequence[str], environ: Mapping[str, str]) -> Program:
    """Start a program without input. Raises OSError if it does not exist."""
    out, end = os.pipe()
    redirected = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, end, 1),
        (os.POSIX_SPAWN_DUP2, end, 2),
    ]
    try:
        return Program(os.posix_spawnp(argv[0], list(argv), dict(environ), file_actions=redirected), out)
    except BaseException:
        os.close(out)
        raise
    finally:
        os.close(end)


def answer(program: Program, patience: float) -> tuple[int, str] | None:
    """Return (exit code, output) of a program once it has ended; a negative code is the signal that killed it.

    None where it has not ended within `patience` seconds.
    """
    said, deadline = [], time.monotonic() + patience
    try:
        while (left := deadline - time.monotonic()) > 0 and select.select([program.out], [], [], left)[0]:
            data = os.read(program.out, 1 << 16)
            if data:
                said.append(data)
            elif (code := _ended(program.pid, deadline)) is not None:
                return code, b"".join(said).decode("utf-8", "replace")
    finally:
        os.close(program.out)
    os.kill(program.pid, signal.SIGKILL)
    _ended(program.pid, time.monotonic() + _GRACE)
    return None


def _ended(pid: int, deadline: float) -> int | None:
    """Return the exit code if the process ends before the deadline, else None."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
