"""Programs that imagegen starts, as `subprocess` has them, and kills when a signal stops the run."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired
from typing import Any, AnyStr, Literal, overload

from imagegen.core import stopping

_PATIENCE = 0.5  # seconds
# Processes of a killed sandbox may add to the tree for a moment.
_REMOVE = 'tries=20; until rm -rf -- "$0" || [ $tries = 0 ]; do tries=$((tries - 1)); sleep 0.05; done'

__all__ = ["DEVNULL", "PIPE", "STDOUT", "Program", "TimeoutExpired", "remove", "run"]


class Program(subprocess.Popen[AnyStr]):
    """A program that runs. When the run is stopped, it is killed, with all that it started.

    With `patience`, it gets a SIGTERM first, and so many seconds to end by itself. Raises as `stopping.check`.
    """

    def __init__(self, argv: Sequence[str | Path], *, patience: float = 0, **options: Any) -> None:
        stopping.check()
        self._patience = patience
        super().__init__(argv, **options)
        stopping.register(self)

    def stop(self) -> None:
        if not self._patience:
            self._kill_all()
            return
        self.terminate()
        timer = threading.Timer(self._patience, self._kill_all)
        timer.daemon = True
        timer.start()

    def _kill_all(self) -> None:
        if self.poll() is None:
            started = _descendants(self.pid)
            self.kill()
            for pid in started:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process and its own started (proc(5), /proc/PID/stat)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    pids = [pid]
    for parent in pids:  # which grows
        pids += children.get(parent, [])
    return pids[1:]


@overload
def run(argv: Sequence[str | Path], *, text: Literal[True], **options: Any) -> subprocess.CompletedProcess[str]: ...
@overload
def run(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[bytes]: ...
def run(
    argv: Sequence[str | Path],
    *,
    input: bytes | None = None,  # noqa: A002 - as in subprocess.run
    timeout: float | None = None,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as `subprocess.run`; a failure of the program is not an exception.

    Raises OSError, TimeoutExpired, and as `stopping.check` also after the program.
    """
    if capture_output:
        options |= {"stdout": PIPE, "stderr": PIPE}
    if input is not None:
        options["stdin"] = PIPE
    with Program[Any](argv, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.stop()
            raise
    stopping.check()
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def remove(path: str | Path, enter: Sequence[str] = ()) -> None:
    """Remove a directory tree with rm, started by the program `enter`. Errors are ignored.

    Once the run is stopped, rm goes on by itself after half a second, since a busy disk takes long for a large tree.
    """
    argv = [*enter, "sh", "-c", _REMOVE, path]
    process = subprocess.Popen(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    with suppress(TimeoutExpired):
        process.wait(_PATIENCE if stopping.is_stopped() else None)
