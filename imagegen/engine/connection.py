"""Open a connection to an engine with Docker's SDK; the minimum versions of engines and buildx."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import docker
from packaging.version import Version
from requests import exceptions

from imagegen.core.errors import EngineError

DEFAULT_HOST = "unix:///var/run/docker.sock"
_NONE = "no container engine"
PULSE = 10  # seconds of silence before an engine is pinged, and for its answer

# How a user without an engine gets one; part of the `fix` of errors.
INSTALL = 'install Docker (https://docs.docker.com/engine/install/), or in a checkout run `eval "$(make -s engine-up)"`'
# Docker 26.1 embeds BuildKit 0.13: named contexts from an OCI layout, OCI exports, rewrite-timestamp. Measured.
ENGINE_FLOOR = Version("26.1")
BUILDX_FLOOR = Version("0.13")


def shortcomings(info: Any) -> tuple[str, ...]:
    """Why an engine cannot be used, as sentences; empty when it can. `info` is the API's /info."""
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
    """The version in `docker buildx version`'s output ("github.com/docker/buildx 0.13.1+ds1 ..."), or None."""
    match = re.search(r"\bv?(\d+\.\d+\.\d+)", output)
    return Version(match[1]) if match else None


def _at_least(text: str, floor: Version) -> bool:
    try:
        return Version(text.split("-", maxsplit=1)[0]) >= floor
    except ValueError:
        return False


def open_client(location: Mapping[str, Any], patience: int) -> docker.DockerClient:
    """A client that has spoken to the engine at `place` (the SDK's base_url and tls). EngineError otherwise.

    `patience` is in seconds.
    """
    host = str(location.get("base_url") or DEFAULT_HOST)
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
    """Raise EngineError if no engine listens at the socket, because the SDK would leave its own socket open."""
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


def while_alive(client: docker.DockerClient, ask: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the events of `ask()`, and None after each period of silence, for as long as the engine answers pings.

    An engine sends no event for minutes while it unpacks, and the SDK waits for the events of a pull without any limit.
    Raises the errors of `ask` and of the ping.
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
            event, error = arrived.get(timeout=PULSE)
        except Empty:
            before, client.api.timeout = client.api.timeout, PULSE
            try:
                client.ping()
            finally:
                client.api.timeout = before
            yield None
            continue
        if isinstance(error, StopIteration):
            return
        if error:
            raise error
        yield event
