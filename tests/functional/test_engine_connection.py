"""Sockets in place of an engine: none, another server, or one without permission."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.engine import Engine, client
from imagegen.engine.connection import INSTALL
from tests.support.golden import Golden


@contextmanager
def listening(directory: Path, answer: bytes) -> Iterator[str]:
    """A socket that accepts, reads a request, sends `answer` and closes; without an answer it only accepts."""
    kept = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "s"))
        server.listen(8)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer and connection.recv(65536):  # a knock sends nothing
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"unix://{directory}/s"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


def http(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def settings_for(tmp_path: Path, **env: str) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **env})


def refused(settings: Settings) -> EngineError:
    with pytest.raises(EngineError) as caught:
        Engine.connect(settings)
    assert caught.value.why
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    "host",
    [
        *("tcp://127.0.0.1:1", "tcp://no-such-host.invalid:2375", "tcp://127.0.0.1:notaport", "banana://x", "/a/path"),
        *("unix://", "unix:///no/such/socket", "npipe:////./pipe/docker_engine"),
    ],
)
@pytest.mark.fault("Engine", "DOCKER_HOST names a host that is not there, or is no address", "an error that names it")
def test_docker_host_that_leads_nowhere(tmp_path: Path, host: str) -> None:
    error = refused(settings_for(tmp_path, DOCKER_HOST=host))
    assert error.where == f"DOCKER_HOST={host}"
    assert "unset DOCKER_HOST" in str(error.fix)


@pytest.mark.fault("Engine", "DOCKER_HOST is ssh://", "an error with the ssh command that forwards the engine's socket")
def test_ssh_is_explained(tmp_path: Path) -> None:
    error = refused(settings_for(tmp_path, DOCKER_HOST="ssh://me@far:22"))
    assert "/var/run/docker.sock ssh://me@far:22`" in str(error)


@pytest.mark.fault("Engine", "DOCKER_CONTEXT names a context that does not exist", "an error that names it")
def test_a_context_that_does_not_exist_is_not_replaced_by_the_default(tmp_path: Path, golden: Golden) -> None:
    error = refused(settings_for(tmp_path, DOCKER_CONTEXT="nope"))
    golden.check(error.why)
    assert error.where == "DOCKER_CONTEXT=nope"


@pytest.mark.parametrize(
    "answer",
    [
        *(b"\x00\xff\x16garbage\r\n\r\n", http("<html>"), http("[]"), http("null"), http("{}"), http("nope", "404 No")),
        *(http('{"message": "boom"}', "500 No"), http('{"ApiVersion": 1}'), http('{"ApiVersion": "x.y"}')),
        http('{"ApiVersion": "99.0", "Version": ["x"], "Platform": "p", "DriverStatus": 3}'),
        http('{"ApiVersion": "99.0", "ServerVersion": ["x"], "DriverStatus": 3}'),
        http('{"ApiVersion": "1.45"}')[:-5],
    ],
)
@pytest.mark.fault("Engine", "what listens at the engine's socket answers garbage", "an error that says what came")
def test_garbage(tmp_path: Path, answer: bytes) -> None:
    with listening(tmp_path, answer) as host:
        error = refused(settings_for(tmp_path, DOCKER_HOST=host))
    assert str(error.where).endswith(host)


@pytest.mark.fault("Engine", "the engine's socket accepts and never answers", "an error after 20 s")
def test_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 0.2)
    with listening(tmp_path, b"") as host:
        error = refused(settings_for(tmp_path, DOCKER_HOST=host))
    golden.check(error.why)


@pytest.mark.fault("Engine", "the engine's socket belongs to others", "an error that says which group may use it")
def test_a_socket_without_permission(tmp_path: Path) -> None:
    with listening(tmp_path, b"") as host:
        settings = settings_for(Path("/nonexistent"), DOCKER_HOST=host)
        (tmp_path / "s").chmod(0)
        user = os.geteuid()
        try:
            if user == 0:  # whom no mode stops
                os.seteuid(65534)
            error = refused(settings)
        finally:
            os.seteuid(user)
    assert "Permission denied" in str(error.why)
    assert "group" in str(error.fix)


@pytest.mark.fault("Engine", "no engine is installed", "an error that says how to install one")
def test_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagegen.engine.connection.DEFAULT_HOST", f"unix://{tmp_path}/docker.sock")
    assert INSTALL in str(refused(settings_for(tmp_path)).fix)
