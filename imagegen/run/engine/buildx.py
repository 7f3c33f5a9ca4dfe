"""Run buildx: the user's plugin for the user's engine, the private engine's own binary for that one."""

from __future__ import annotations

import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress
from imagegen.run.engine.connection import BUILDX_FLOOR, buildx_version

_TAIL = 30  # lines of output in an error
_LONGEST_LINE = 1 << 16  # bytes; a longer one counts as several


@dataclass(frozen=True)
class Buildx:
    """A way to call buildx: the first words of the command, and the whole environment."""

    command: tuple[str, ...]
    env: Mapping[str, str]


def run_buildx(
    buildx: Buildx, args: Sequence[str], cwd: Path, progress: Progress, on_line: Callable[[str], None] | None = None
) -> str:
    """See `Engine.buildx`."""
    _check(buildx)
    # Attestations and git labels would make a build's digest depend on more than its Dockerfile.
    # So would a commit, which buildx has the user's git look for in every directory above, unprotected.
    env = {name: value for name, value in buildx.env.items() if name != "BUILDX_GIT_LABELS"}
    env |= {"BUILDX_GIT_INFO": "false", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDKIT_PROGRESS": "plain"}
    tail: deque[str] = deque(maxlen=_TAIL)
    with tempfile.TemporaryFile() as stdout:
        process = subprocess.Popen(
            [*buildx.command, *args], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE
        )
        assert process.stderr is not None  # noqa: S101 - PIPE was requested
        try:
            for raw in iter(partial(process.stderr.readline, _LONGEST_LINE), b""):
                line = raw.decode(errors="replace").rstrip()
                tail.append(line)
                if on_line:
                    on_line(line)
                elif line.startswith("#"):
                    progress.say(f"buildx: {line}")
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            process.stderr.close()
        stdout.seek(0)
        printed = stdout.read().decode(errors="replace")
    if code:
        raise EngineError(
            f"buildx {args[0]} failed with exit code {code}",
            code="engine-buildx-failed",
            where=str(cwd),
            why="\n".join(tail),
        )
    return printed


def _check(buildx: Buildx) -> None:
    name = " ".join(buildx.command)
    try:
        done = subprocess.run(
            [*buildx.command, "version"], env=dict(buildx.env), capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise EngineError(
            f"no {buildx.command[0]} on PATH", code="engine-buildx-missing", fix="install Docker's command line"
        ) from error
    version = buildx_version(done.stdout) if done.returncode == 0 else None
    if version is None:
        raise EngineError(
            f"`{name}` does not work",
            code="engine-buildx-missing",
            why=(done.stderr or done.stdout).strip(),
            fix="install the buildx plugin (the package is docker-buildx, or docker-buildx-plugin from Docker's own)",
        )
    if version < BUILDX_FLOOR:
        raise EngineError(
            f"`{name}` is {version}",
            code="engine-buildx-too-old",
            why=f"{BUILDX_FLOOR} is the oldest that works",
            fix="upgrade it",
        )
