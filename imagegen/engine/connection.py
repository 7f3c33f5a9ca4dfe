"""Open a connection to an engine with Docker's SDK."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import docker
from requests import exceptions

from imagegen.core.errors import EngineError

DEFAULT_HOST = "unix:///var/run/docker.sock"
_NONE = "no container engine"
PULSE = 10  # seconds of silence before an engine is pinged, and for its answer


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
