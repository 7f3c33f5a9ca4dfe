"""Inspect a container that imagegen did not start.

`inspect_container` reads the state, `exec_in` runs one program, and nothing else changes.

Source: Docker Engine API v1.44 (containers, logs, exec).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import docker
from docker.errors import NotFound
from docker.utils.socket import STDOUT, SocketError, frames_iter

from imagegen.core.errors import EngineError, LostEngineError
from imagegen.engine.containers import close_stream, explained, of_a_container

_LINES = 5000  # the end of a log that is read
_LONGEST_LOG = 4 << 20  # bytes of it
_LONGEST = 1 << 20  # bytes of a report


@dataclass(frozen=True)
class ContainerInfo:
    """A container's state in the engine. `exit_code` is meaningless while it runs; `log` is the end of both streams."""

    running: bool
    exit_code: int
    out_of_memory: bool
    labels: Mapping[str, str]
    log: str


def inspect_container(client: docker.DockerClient, name: str) -> ContainerInfo:
    """Return the container with this name or id. Raises EngineError when there is none, or the engine fails."""
    doing = f"inspecting the container {name}"
    with explained(doing):
        try:
            container = client.api.inspect_container(name)
        except NotFound:
            fix = "`docker ps --all` shows those there are"
            raise EngineError(f"there is no container called {name}", code="engine-no-container", fix=fix) from None
        log = bytearray()
        for piece in client.api.logs(name, tail=_LINES, stream=True, follow=False):
            log += piece
            del log[:-_LONGEST_LOG]
    state = container["State"]
    return ContainerInfo(
        running=bool(state["Running"]),
        exit_code=int(state["ExitCode"]),
        out_of_memory=bool(state.get("OOMKilled")),
        labels=container["Config"].get("Labels") or {},
        log=log.decode("utf-8", "replace"),
    )


def exec_in(client: docker.DockerClient, name: str, argv: Sequence[str], *, patience: float = 60) -> bytes:
    """Run a program in a running container and return its stdout.

    Raises ContainerError when the container has ended, EngineError when the engine fails, and when the program, which
    comes from the container and is not trusted, runs for more than `patience` seconds or prints more than a report has.
    It is left running then, because the API can only end the whole container, which imagegen did not start.
    """
    api, doing = client.api, f"running {argv[0]} in the container {name}"
    with explained(doing), of_a_container(doing):
        created = api.exec_create(name, list(argv))["Id"]
        stream = api.exec_start(created, socket=True)
    output, failed = bytearray(), list[Exception]()

    def collect() -> None:
        try:
            for kind, piece in frames_iter(stream, tty=False):  # type: ignore[no-untyped-call]
                output.extend(piece if kind == STDOUT else b"")
                if len(output) > _LONGEST:
                    return
        except (OSError, SocketError) as error:
            failed.append(error)

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    reader.join(patience)
    goes_on = reader.is_alive()
    close_stream(stream, reader)
    if goes_on or len(output) > _LONGEST:
        what = f"goes on after {patience:.0f} s" if goes_on else f"prints more than {_LONGEST} bytes"
        raise EngineError(
            f"{argv[0]} in the container {name} {what}", code="engine-exec-failed", fix="look at it with `docker exec`"
        )
    if failed:
        raise LostEngineError(f"{doing}: no answer from the engine", why=str(failed[0]), fix="see that the engine runs")
    return bytes(output)
