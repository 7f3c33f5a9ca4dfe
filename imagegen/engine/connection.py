"""Connections to engines: their minimum versions, opening one with Docker's SDK, and running buildx."""

from __future__ import annotations

import errno
import os
import re
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import docker
from packaging.version import Version
from requests import exceptions

from imagegen.core import programs
from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress

# How a user without an engine gets one; part of the `fix` of errors.
INSTALL = 'install Docker (https://docs.docker.com/engine/install/), or in a checkout run `eval "$(make -s engine-up)"`'
# Docker 26.1 embeds BuildKit 0.13: named contexts from an OCI layout, OCI exports, rewrite-timestamp. Measured.
ENGINE_FLOOR = Version("26.1")
BUILDX_FLOOR = Version("0.13")


def shortcomings(info: Any) -> tuple[str, ...]:
    """Why an engine cannot be used, as sentences; empty when it can. `info` is what the API's /info gives."""
    if not isinstance(info, dict) or "ServerVersion" not in info:
        return ("it does not say what it is, as a Docker engine would",)
    sentences = []
    text = str(info["ServerVersion"])
    if not _at_least(text, ENGINE_FLOOR):
        sentences.append(
            f"it is version {text}; Docker {ENGINE_FLOOR} is the oldest whose BuildKit does what is needed"
        )
    if info.get("OSType") != "linux":
        sentences.append(f"it runs {info.get('OSType')} containers; images are for linux")
    status = info.get("DriverStatus")
    if not isinstance(status, list) or ["driver-type", "io.containerd.snapshotter.v1"] not in status:
        sentences.append(
            f"it keeps images in the classic store ({info.get('Driver')}), which can neither export OCI images nor "
            "keep a manifest's digest"
        )
    return tuple(sentences)


def buildx_version(output: str) -> Version | None:
    """The version in what `docker buildx version` prints ("github.com/docker/buildx 0.13.1+ds1 ..."), or None."""
    match = re.search(r"\bv?(\d+\.\d+\.\d+)", output)
    return Version(match[1]) if match else None


def _at_least(text: str, floor: Version) -> bool:
    try:
        return Version(text.split("-", maxsplit=1)[0]) >= floor
    except ValueError:
        return False


# Open a connection to an engine with Docker's SDK.

_DEFAULT = "unix:///var/run/docker.sock"
_NONE = "no container engine"
_PULSE = 10  # seconds of silence before an engine is pinged, and for its answer


def open_client(location: Mapping[str, Any], patience: int) -> docker.DockerClient:
    """A client that has spoken to the engine at `place` (the SDK's base_url and tls). EngineError otherwise.

    `patience` is in seconds.
    """
    host = str(location.get("base_url") or _DEFAULT)
    if host.startswith("ssh://"):
        fix = f"`ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock {host}` and DOCKER_HOST=unix:///tmp/engine.sock"
        raise EngineError(_NONE, code="engine-missing", where=host, why="imagegen does not speak ssh", fix=fix)
    for scheme in ("unix://", "http+unix://"):
        if host.startswith(scheme):
            _knock("/" + host.removeprefix(scheme).lstrip("/"))
    try:
        return docker.DockerClient(**{**location, "base_url": host}, version="auto", timeout=patience)
    except Exception as error:  # the SDK does not validate addresses, and raises errors of any type
        why = str(error).removeprefix("Error while fetching server API version: ")
        cause = error.__cause__
        if isinstance(cause, exceptions.Timeout):
            why = f"it accepts connections and has not answered for {patience} s"
        elif cause and not isinstance(cause, exceptions.ConnectionError):
            why = f"what answers there is no Docker engine: {why}"
        raise EngineError(_NONE, code="engine-missing", where=host, why=why, fix="start that engine") from error


def _knock(path: str) -> None:
    """Raise EngineError if no engine listens at the socket: the SDK would leave its own socket open."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            fix = "start that engine"
            if error.errno == errno.EACCES:
                fix = f"join the group that may use it (`ls -l {path}` shows it)"
            why = f"nothing listens at {path}" if error.errno != errno.EACCES else f"{path} is not yours to use"
            raise EngineError(
                _NONE, code="engine-missing", where=path, why=f"{why}: {os.strerror(error.errno or 0)}", fix=fix
            ) from error


def while_alive(
    client: docker.DockerClient, ask: Callable[[], Iterable[Any]], silent: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Yield the events of `ask()`, for as long as the engine answers a ping after each period of silence.

    An engine sends no event for minutes while it unpacks, and the SDK waits for the events of a pull without any limit.
    `silent` is called after each such ping. Raises what the two raise, and the SDK's errors of the ping.
    """
    arrived: SimpleQueue[Any] = SimpleQueue()

    def read() -> None:
        try:
            for event in ask():
                arrived.put((event, None))
            arrived.put((None, StopIteration()))
        except Exception as error:  # noqa: BLE001 - it is raised where the events are read
            arrived.put((None, error))

    Thread(target=read, daemon=True).start()
    while True:
        try:
            event, error = arrived.get(timeout=_PULSE)
        except Empty:
            before, client.api.timeout = client.api.timeout, _PULSE
            try:
                client.ping()
            finally:
                client.api.timeout = before
            silent()
            continue
        if isinstance(error, StopIteration):
            return
        if error:
            raise error
        yield event


# Run buildx, the plugin of the user's Docker client.

_TAIL = 30  # lines of output in an error
_CANCEL = 1.0  # seconds in which buildx tells the engine that a build is cancelled
_LONGEST_LINE = 1 << 16  # bytes; a longer one counts as several


def run_buildx(
    env: Mapping[str, str],
    args: Sequence[str],
    cwd: Path,
    progress: Progress,
    on_line: Callable[[str], None] | None = None,
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
                if on_line:
                    on_line(line)
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
