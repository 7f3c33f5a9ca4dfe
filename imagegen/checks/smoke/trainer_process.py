"""A framework's own trainer as a subprocess: its time limit, and the logs of a trainer that fails or hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from smoke.program import SECONDS

LOG_LINES = 80  # of the trainer's output
TIMEOUT = 1500  # seconds
REPORT = 20  # seconds before the runner kills the check: a run that hangs is ended, and its stacks are read
STACK_LINES = 400  # of all processes together


def run_trainer(
    argv: Sequence[str], folder: Path, environment: Mapping[str, str], ray_logs: Path | None = None
) -> tuple[int | None, str]:
    """Run the trainer in `folder`; return its exit code (None: past its time) and the end of its output.

    Of a trainer that hangs, the stacks of its Ray workers follow, which write them below `ray_logs`.
    """
    log = folder / "log"
    with log.open("wb") as output:
        # In the check's own session, whose processes the runner ends with it.
        process = subprocess.Popen(argv, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            code: int | None = process.wait(min(TIMEOUT, float(os.environ.get(SECONDS, "inf")) - REPORT))
        except subprocess.TimeoutExpired:
            dump_stacks()
            process.kill()
            code = None
    text = "\n".join(read_lines(log)[-LOG_LINES:])
    return code, text if code is not None or ray_logs is None else text + "\n" + worker_stacks(ray_logs)


def dump_stacks() -> None:
    """End all processes of this check with SIGABRT, so that each Python process writes its stacks to stderr.

    They are those of the session that the runner made for it; does nothing where this process leads no session.
    """
    own = os.getpid()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile, or it is no process
            number = int(name)
            if number != own and os.getsid(number) == own:
                os.kill(number, signal.SIGABRT)
    time.sleep(5)


def worker_stacks(ray_logs: Path) -> str:
    """Return the stacks that Ray's workers wrote as they were ended: Ray keeps their stderr in files."""
    found = []
    for path in sorted(ray_logs.glob("worker-*.err")):
        lines = read_lines(path)
        start = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
        if start is not None:
            found += [f"{path.name}:", *lines[start:]]
    return "\n".join(found[:STACK_LINES])


def log_tails(ray_logs: Path, lines: int) -> str:
    """Return the last lines of each file that Ray's workers and its two daemons, raylet and gcs_server, wrote."""
    paths = [path for name in ("worker-*", "raylet.*", "gcs_server.*") for path in sorted(ray_logs.glob(name))]
    tails = {path.name: read_lines(path)[-lines:] for path in paths}
    return "\n".join(line for name, tail in tails.items() if tail for line in (f"{name}:", *tail))


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
