"""Run buildx, the plugin of the user's Docker client."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from imagegen.core import programs
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress
from imagegen.engine.requirements import BUILDX_FLOOR, buildx_version

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_TAIL = 30  # lines of output in an error
_CANCEL = 1.0  # seconds in which buildx tells the engine that a build is cancelled
_LONGEST_LINE = 1 << 16  # bytes; a longer one counts as several


def run_buildx(
    env: Mapping[str, str], args: Sequence[str], cwd: Path, progress: Progress, output: SupportsWrite[str] | None = None
) -> str:
    """Run buildx with `env` as its whole environment: see `Engine.buildx`."""
    _check_buildx(env)
    # Attestations and git labels would make a build's digest depend on more than its Dockerfile.
    # So would a commit, which buildx has the user's git look for in every directory above, unprotected.
    env = {name: value for name, value in env.items() if name != "BUILDX_GIT_LABELS"}
    env |= {"BUILDX_GIT_INFO": "false", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDKIT_PROGRESS": "plain"}
    tail: deque[str] = deque(maxlen=_TAIL)
    with tempfile.TemporaryFile() as stdout:
        process = programs.Program[bytes](
            ["docker", "buildx", *args],
            patience=_CANCEL,
            cwd=cwd,
            env=env,
            stdin=programs.DEVNULL,
            stdout=stdout,
            stderr=programs.PIPE,
        )
        assert process.stderr is not None  # noqa: S101 - PIPE was requested
        try:
            for raw in iter(partial(process.stderr.readline, _LONGEST_LINE), b""):
                line = raw.decode(errors="replace").rstrip()
                tail.append(line)
                if output:
                    output.write(line)
                elif line.startswith("#"):
                    progress.say(f"buildx: {line}")
            code = process.wait()
        finally:
            if process.poll() is None:
                process.stop()
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


def _check_buildx(env: Mapping[str, str]) -> None:
    try:
        completed = programs.run(["docker", "buildx", "version"], env=dict(env), capture_output=True, text=True)
    except FileNotFoundError as error:
        raise EngineError(
            "no docker on PATH", code="engine-buildx-missing", fix="install Docker's command line"
        ) from error
    version = buildx_version(completed.stdout) if completed.returncode == 0 else None
    if version is None:
        raise EngineError(
            "`docker buildx` does not work",
            code="engine-buildx-missing",
            why=(completed.stderr or completed.stdout).strip(),
            fix="install the buildx plugin (the package is docker-buildx, or docker-buildx-plugin from Docker's own)",
        )
    if version < BUILDX_FLOOR:
        raise EngineError(
            f"`docker buildx` is {version}",
            code="engine-buildx-too-old",
            why=f"{BUILDX_FLOOR} is the oldest that works",
            fix="upgrade it",
        )
