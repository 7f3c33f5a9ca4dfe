"""Records, lock, client and environment of a private engine; an integration test starts and stops it."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Quiet
from tools.engine import private
from tools.engine.__main__ import command
from tools.engine.network import Network


def test_an_engine_that_came_up_while_we_waited_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds on one machine: the second must not take down what the first has just started."""
    engine = private.PrivateEngine(tmp_path)
    answers = iter([None, engine])
    monkeypatch.setattr(private, "running", lambda _: next(answers))
    monkeypatch.setattr(private, "check_machine", lambda _: None)
    monkeypatch.setattr(private, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(private, "stop_engine", lambda *_: pytest.fail("the other's engine was stopped"))
    state = tmp_path / ".cache/imagegen/engine/state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"network": {"bridge": "igx", "subnet": "10.213.0.0/16", "forwarding": true}, "made": []}')
    assert private.up(Settings.from_environment({"HOME": str(tmp_path)}), Quiet()) == engine


def test_the_lock_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "LOCK", tmp_path / "lock")
    inside: list[int] = []

    def enter(number: int) -> None:
        with private.hold_lock(Quiet()):
            inside.append(number)
            assert inside == [number]
            time.sleep(0.01)
            inside.remove(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(enter, range(40)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("record", ["", "{", "[]", '{"network": {"bridge": 1}, "made": []}'])
def test_a_damaged_record_is_named(tmp_path: Path, record: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(record)
    with pytest.raises(EngineError) as caught:
        private.read_record(path)
    assert caught.value.where == str(path)
    assert str(tmp_path) in (caught.value.fix or "")


def test_the_client_of_the_engine_runs_docker_and_buildx(tmp_path: Path) -> None:
    engine = private.PrivateEngine(tmp_path / "a cache")
    programs = {"docker": engine.packages / "usr/bin/docker"}
    programs["buildx"] = engine.packages / "usr/libexec/docker/cli-plugins/docker-buildx"
    for name, program in programs.items():
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)
    private.write_client(engine)
    env = engine.environment({"PATH": "/usr/bin:/bin"})
    assert env["DOCKER_HOST"].startswith("unix:///run/imagegen-ig")
    for arguments, printed in (("ps -q", "docker ps -q\n"), ("buildx ls 'a b'", "buildx ls a b\n")):
        ended = subprocess.run(["sh", "-c", f"docker {arguments}"], env=env, capture_output=True, text=True, check=True)
        assert ended.stdout == printed


def test_up_prints_what_a_shell_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = private.PrivateEngine(tmp_path / "it's a cache")
    monkeypatch.setattr(private, "up", lambda *_: engine)
    for running, started in ((None, "yes"), (engine, "")):
        monkeypatch.setattr(private, "running", lambda _, running=running: running)
        printed = CliRunner().invoke(command, ["up"], catch_exceptions=False).stdout
        shell = f'PATH=/bin; {printed}\necho "$DOCKER_HOST|$PATH|$engine_started"'
        ended = subprocess.run(["sh", "-c", shell], env={}, capture_output=True, text=True, check=True)
        assert ended.stdout == f"{engine.docker_host}|{engine.programs}:/bin|{started}\n"


def test_the_engine_gets_no_secret(tmp_path: Path) -> None:
    engine = private.PrivateEngine(tmp_path / "home")
    program, file = engine.packages / "usr/sbin/dockerd", tmp_path / "env"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nenv > {file}.new && mv {file}.new {file}\n")
    program.chmod(0o755)
    env = {"COSIGN_PASSWORD": "hunter2", "PIP_INDEX_URL": "https://me:hunter2@index.example"}
    env |= {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "https_proxy": "http://proxy:1"}
    network = Network("b", "10.0.0.0/16", forwarding=False)
    private.start_engine(engine, network, Settings.from_environment(env))
    deadline = time.monotonic() + 10
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "hunter2" not in file.read_text()
    assert "https_proxy=http://proxy:1" in file.read_text()
