"""Supported engines, the page that names their minimum version, and messages about the choice of an engine."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from packaging.version import Version

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.engine import Engine, connection
from imagegen.engine.connection import buildx_version, shortcomings
from tests.support.errors import raises
from tests.support.golden import Golden

ROOT = Path(__file__).parents[2]
GOOD = {"OSType": "linux", "Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
CLASSIC = {"OSType": "linux", "Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}


@pytest.mark.parametrize("version", ["26.1.5+dfsg1", "26.1.0", "28.5.2", "29.0.0-rc.1", "29.4.0+dfsg1"])
def test_an_engine_at_or_above_the_floor_will_do(version: str) -> None:
    assert shortcomings({"ServerVersion": version, **GOOD}) == ()


@pytest.mark.parametrize("version", ["20.10.24+dfsg1", "25.0.5", "26.0.2", "unknown", ""])
def test_an_engine_below_the_floor_will_not(version: str) -> None:
    (problem,) = shortcomings({"ServerVersion": version, **GOOD})
    assert version in problem
    assert str(connection.ENGINE_FLOOR) in problem


def test_the_classic_store_and_windows_will_not() -> None:
    (problem,) = shortcomings({"ServerVersion": "28.5.2", **CLASSIC})
    assert "classic store (overlay2)" in problem
    assert len(shortcomings({"ServerVersion": "24.0.0", **CLASSIC, "OSType": "windows"})) == 3


def test_buildx_says_its_version_in_several_ways() -> None:
    assert buildx_version("github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3\n") == Version("0.13.1")
    assert buildx_version("github.com/docker/buildx v0.29.1-desktop.1 abcdef\n") == Version("0.29.1")
    assert buildx_version("github.com/docker/buildx v0.30.1 9e66234aa13328a5e75b75aa5574e1ca6d6d9c01\n") == Version(
        "0.30.1"
    )
    assert buildx_version("docker: 'buildx' is not a docker command.") is None


@contextmanager
def pretending(version: str, info: dict[str, Any]) -> Iterator[str]:
    """A Docker API that can only say who it is."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            info_asked = self.path.endswith("/info")
            said = {**info, "ServerVersion": version} if info_asked else {"Version": version, "ApiVersion": "1.45"}
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def settings_for(tmp_path: Path, **env: str) -> Settings:
    return Settings.from_environment({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **env})


def test_docker_host_that_will_not_do_is_an_error_with_what_why_fix(tmp_path: Path) -> None:
    with pretending("20.10.24+dfsg1", CLASSIC) as host:
        with pytest.raises(EngineError) as caught:
            Engine.connect(settings_for(tmp_path, DOCKER_HOST=host))
        error = caught.value
        assert error.where == f"DOCKER_HOST={host}"
        assert "20.10.24" in str(error.why)
        assert "classic store" in str(error.why)
        assert "containerd-snapshotter" in str(error.fix)
        assert "unset DOCKER_HOST" in str(error.fix)


def test_docker_host_that_will_do_is_used_and_said(tmp_path: Path, golden: Golden) -> None:
    with pretending("28.5.2", GOOD) as host, Engine.connect(settings_for(tmp_path, DOCKER_HOST=host)) as engine:
        assert engine.describe() == f"your Docker 28.5.2 ({host})"
        golden.check(engine.docker_run_line("a:1", "sh", "-c", "x y"))
        line = engine.docker_run_line("a:1", "sh", "-c", "x y", own_entrypoint=True)
        golden.check(line, engine.buildx_line("ls"))


def test_docker_host_without_a_listener_is_named(tmp_path: Path, golden: Golden) -> None:
    socket = tmp_path / "none.sock"
    with pytest.raises(EngineError) as caught:
        Engine.connect(settings_for(tmp_path, DOCKER_HOST=f"unix://{socket}"))
    golden.check(caught.value)
    assert str(socket) in str(caught.value)
    assert "unset DOCKER_HOST" in str(caught.value.fix)


def test_buildx_that_is_missing_says_what_to_install(tmp_path: Path) -> None:
    client = docker.DockerClient(base_url="unix:///run/x/docker.sock", version="1.44")
    with Engine(client, settings_for(tmp_path, PATH=str(tmp_path))) as engine:
        with raises("engine-buildx-missing"):
            engine.buildx(["ls"], tmp_path)
        program = tmp_path / "docker"
        program.write_text("#!/bin/sh\necho github.com/docker/buildx v0.10.0 abc\n")
        program.chmod(0o755)
        with raises("engine-buildx-too-old"):
            engine.buildx(["ls"], tmp_path)


def test_buildx_gets_the_builder_and_each_line_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text(
        '#!/bin/sh\nshift\n[ "$1" = version ] && { echo github.com/docker/buildx v0.29.1 abc; exit; }\n'
        'echo "#1 $*" >&2; echo printed\n'
    )
    program.chmod(0o755)
    client = docker.DockerClient(base_url="unix:///run/x/docker.sock", version="1.44")
    output, other_output = io.StringIO(), io.StringIO()
    with Engine(client, settings_for(tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")) as engine:
        assert engine.buildx(["build", "."], tmp_path, builder="farm", output=output) == "printed\n"
        assert output.getvalue() == "#1 build --builder farm ."
        engine.buildx(["build", "."], tmp_path, output=other_output)
        assert other_output.getvalue() == "#1 build ."

        class Tired:
            def write(self, line: str) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.buildx(["build", "."], tmp_path, output=Tired())
