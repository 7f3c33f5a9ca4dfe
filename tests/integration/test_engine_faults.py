"""Engines that are too old, far away, full, or die at the worst moment: real ones, each in namespaces of its own."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from imagegen.app.build import BuildOptions, build_image
from imagegen.checks.smoke.table import applicable
from imagegen.core.config import Settings
from imagegen.core.errors import EngineError, LostEngineError
from imagegen.core.progress import Progress, Quiet
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.engine import connection as opening
from imagegen.lock import local_tags
from imagegen.spec.model import Cell, Declarations
from tests.support.docker_daemons import Daemon, at
from tests.support.session import session_of
from tests.support.tiny_image import tiny_image
from tests.support.tiny_lock import LOCK
from tools.engine.packages import unpack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine in namespaces of its own needs root"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def running(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Daemon(tmp_path_factory.mktemp("d") / "d", programs, hosts=[f"tcp://127.0.0.1:{port}"]) as found:
        yield found


@pytest.fixture
def daemon(running: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """One that the test may stop or kill, if it brings it back; it has no image and no container."""
    yield running
    with Engine.connect(at(running, tmp_path)) as engine:
        for name in names(engine):
            engine.client.api.remove_image(name, force=True)
        assert_clean(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the SDK leaves a socket open when an engine refuses it
        gc.collect()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def big(store: Store, busybox: bytes) -> str:
    """An image whose loading takes a while, and of which no engine has anything."""
    return tiny_image(store, busybox, {"big": secrets.token_bytes(40 * MEGABYTE)})


@pytest.fixture(scope="module")
def small(store: Store, busybox: bytes) -> str:
    return tiny_image(store, busybox, {"n": secrets.token_bytes(8)})


class Trigger(Quiet):
    """Does something once: when the first byte has been loaded."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.lines: list[str] = []
        self._act: Callable[[], object] | None = act

    def say(self, text: str) -> None:
        self.lines.append(text)

    def meter(self, label: str, total: int) -> Trigger:
        return self

    def __enter__(self) -> Trigger:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, amount: int) -> None:
        act, self._act = self._act, None
        if act:
            act()


def names(engine: Engine) -> set[str]:
    """Every tag that the engine has, and every name by digest that only loading uses."""
    images = engine.client.api.images(all=True)
    found = {name for image in images for name in [*(image["RepoTags"] or []), *(image["RepoDigests"] or [])]}
    return {name for name in found if "@" not in name or name.startswith(("127.0.0.1", "imagegen.invalid"))}


def assert_clean(engine: Engine, *expected: str) -> None:
    """No container and no name but the expected ones."""
    deadline = time.monotonic() + 10
    while (left := engine.client.api.containers(all=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert names(engine) == set(expected)


@contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """Yield for a block in which the engine is killed or stopped; afterwards start it again."""
    try:
        yield
    finally:
        daemon.signal("KILL")
        daemon.start()


@pytest.mark.fault("Engine", "it is killed while it loads an image", "an error; the tag stays; the next build loads it")
def test_killed_while_loading(daemon: Daemon, store: Store, small: str, big: str, tmp_path: Path) -> None:
    with Engine.connect(at(daemon, tmp_path)) as engine:
        engine.load(store, small, "lost:1")
        with stopped(daemon), pytest.raises(EngineError, match=r"loading .*: no answer from the engine"):
            engine.load(store, big, "lost:1", Trigger(lambda: daemon.signal("KILL")))
        assert engine.image_digest("lost:1") == small
        assert_clean(engine, "lost:1")
        engine.load(store, big, "lost:1")
        assert engine.image_digest("lost:1") == big
        assert_clean(engine, "lost:1")


@pytest.mark.parametrize("own_network", [False, True], ids=["pull", "archive"])
@pytest.mark.fault("Engine", "it hangs while it loads an image", "an error after a minute; the next build loads it")
def test_hung_while_loading(
    programs: Path,
    store: Store,
    small: str,
    big: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    own_network: bool,
) -> None:
    monkeypatch.setattr(opening, "PULSE", 0.5)
    with (
        Daemon(tmp_path / "d", programs, own_network=own_network) as daemon,
        Engine.connect(at(daemon, tmp_path)) as engine,
    ):
        engine.load(store, small, "hung:1")
        wake = threading.Timer(
            4, daemon.signal, ["CONT"]
        )  # so that the test ends, and fails, if the stop is not noticed
        with stopped(daemon):
            wake.start()
            with pytest.raises(EngineError, match=r"loading .*: no answer from the engine"):
                engine.load(store, big, "hung:1", Trigger(lambda: daemon.signal("STOP")))
            wake.cancel()
        assert engine.image_digest("hung:1") == small
        assert_clean(engine, "hung:1")
        engine.load(store, big, "hung:1")
        assert_clean(engine, "hung:1")


@pytest.mark.fault("Engine", "it dies before or while a program runs in a container", "an error; no container is left")
def test_lost_while_a_container_runs(daemon: Daemon, store: Store, small: str, tmp_path: Path) -> None:
    with Engine.connect(at(daemon, tmp_path)) as engine:
        engine.load(store, small, "lost:1")
        with stopped(daemon), engine.container("lost:1") as container:
            timer = threading.Timer(0.5, daemon.signal, ["KILL"])
            timer.start()
            with pytest.raises(EngineError, match="running sleep in a container"):
                container.exec(["sleep", "60"])
            timer.join()
        with stopped(daemon), engine.container("lost:1") as container:
            daemon.signal("KILL")
            with pytest.raises(EngineError, match="running sleep in a container: no answer from the engine"):
                container.exec(["sleep", "60"])
        with stopped(daemon):
            daemon.signal("KILL")
            with pytest.raises(EngineError, match="starting a container"), engine.container("lost:1"):
                pytest.fail("it started")
            with pytest.raises(EngineError, match="tagging"):
                engine.tag("lost:1", "lost:2")
        assert_clean(engine, "lost:1")


# A stand-in for the smoke checks, which a tiny image cannot run: whatever is asked of it passes.
PASSES = b"""#!/bin/sh
for check; do :; done
echo '{"check": "'$check'", "status": "pass", "reason": "", "details": {}, "seconds": 0, "log": ""}'
"""


class AfterChecks(Quiet):
    """Does something when the last check has passed."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def say(self, text: str) -> None:
        if text.startswith(f"  {applicable(())[-1].name}: pass"):
            self._act()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            "killed",
            marks=pytest.mark.fault(
                "Engine", "it dies between the checks and the tag", "an error; the tag has not moved"
            ),
        ),
        pytest.param(
            "taken",
            marks=[
                pytest.mark.fault(
                    "Engine", "another image takes the tag during the checks", "only the tested image is tagged"
                ),
            ],
        ),
    ],
)
def test_only_what_was_proven_gets_the_moving_tag(
    fault: str,
    daemon: Daemon,
    store: Store,
    busybox: bytes,
    small: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = tiny_image(store, busybox, {"bin/env": PASSES, "n": secrets.token_bytes(8)})
    monkeypatch.setattr("imagegen.app.assemble.assemble_image", lambda *_, **__: SimpleNamespace(digest=digest))
    lock = replace(LOCK, wheels=(), record=None)
    cell = cast("Cell", SimpleNamespace(id=lock.cell, declarations=Declarations()))
    moving, fixed = local_tags(lock)
    with Engine.connect(at(daemon, tmp_path)) as engine:

        def build(progress: Progress) -> None:
            session = session_of(store, at(daemon, tmp_path), progress)
            build_image(session, cell, lock, engine, BuildOptions())

        engine.load(store, small, moving)
        if fault == "killed":
            with stopped(daemon), pytest.raises(LostEngineError, match=f"tagging {moving}"):
                build(progress=AfterChecks(lambda: daemon.signal("KILL")))
            assert engine.image_digest(moving) == small
            assert_clean(engine, moving, fixed)
            build(progress=Quiet())
        else:
            build(progress=AfterChecks(lambda: engine.tag(moving, fixed)))
        assert engine.image_digest(moving) == digest


@pytest.mark.fault("Killed and damaged", "imagegen is killed while checks run in a container", "the container goes")
def test_killed_while_a_container_runs(daemon: Daemon, store: Store, small: str, tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tests.support.docker_daemons import at
from imagegen.engine import Engine
with Engine.connect(at({daemon.host!r}, Path({str(tmp_path)!r}))) as engine, engine.container("killed:1") as container:
    container.exec(["echo"])
    assert len(engine.client.containers.list()) == 1
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with Engine.connect(at(daemon, tmp_path)) as engine:
        engine.load(store, small, "killed:1")
        done = subprocess.run([sys.executable, "-c", program], check=False)
        assert done.returncode == -signal.SIGKILL
        assert_clean(engine, "killed:1")


@pytest.mark.fault("Killed and damaged", "imagegen is killed while Docker loads", "the next build takes its names away")
def test_killed_while_parts_are_loaded(daemon: Daemon, store: Store, big: str, small: str, tmp_path: Path) -> None:
    program = f"""
import os, signal, time
from pathlib import Path
from imagegen.core.store import Store
from tests.support.image_parts import part_of
from tests.support.docker_daemons import at
from imagegen.engine import Engine
store = Store(Path({str(store.root)!r}))
part = part_of(store, {big!r}, 1)
with Engine.connect(at({daemon.host!r}, Path({str(tmp_path)!r}))) as engine, engine.loading(store) as early:
    early.offer(part)
    while engine.image_digest(part.digest) is None:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    with Engine.connect(at(daemon, tmp_path)) as engine:
        engine.load(store, small, "next:1")
        assert_clean(engine, "next:1")


@pytest.mark.fault("Engine", "DOCKER_HOST is tcp://", "works as a local engine does")
def test_an_engine_over_tcp(daemon: Daemon, store: Store, small: str, tmp_path: Path) -> None:
    with Engine.connect(at(daemon.hosts[1], tmp_path)) as engine:
        engine.load(store, small, "tcp:1")
        with engine.container("tcp:1", files={"a": b"copied"}) as container:
            assert container.exec(["cat", "/a"]).stdout == b"copied"
        assert_clean(engine, "tcp:1")


@pytest.mark.fault("Engine", "it cannot reach this machine's loopback", "it is given an archive of what it lacks")
def test_loopback_out_of_reach(
    programs: Path, store: Store, busybox: bytes, small: str, big: str, tmp_path: Path
) -> None:
    changed = tiny_image(store, busybox, {"changed": secrets.token_bytes(8)})
    with (
        Daemon(tmp_path / "d", programs, own_network=True) as daemon,
        Engine.connect(at(daemon, tmp_path)) as engine,
    ):
        for digest in (small, big, changed):
            said = Trigger(lambda: None)
            engine.load(store, digest, "far:1", said)
            assert engine.image_digest("far:1") == digest
            assert "the engine cannot reach this machine's loopback: loading an archive instead" in said.lines
        assert_clean(engine, "far:1")
        with engine.container("far:1") as container:
            assert container.exec(["ls", "/changed"]).exit_code == 0


@pytest.mark.slow
@pytest.mark.fault("Engine", "a firewall drops what it sends to loopback", "it is given an archive, after a minute")
def test_loopback_that_never_answers(programs: Path, store: Store, small: str, tmp_path: Path) -> None:
    firewall = "ip link set lo up; iptables -A OUTPUT -o lo -p tcp -j DROP"
    with (
        Daemon(tmp_path / "d", programs, own_network=True, setup=firewall) as daemon,
        Engine.connect(at(daemon, tmp_path)) as engine,
    ):
        engine.load(store, small, "far:1")
        assert engine.image_digest("far:1") == small
        assert_clean(engine, "far:1")


@pytest.mark.parametrize("own_network", [False, True], ids=["pull", "archive"])
@pytest.mark.fault("Engine", "its disk is full", "an error that says so; the tag has not moved")
def test_full_disk(programs: Path, store: Store, big: str, small: str, tmp_path: Path, *, own_network: bool) -> None:
    with (
        Daemon(tmp_path / "d", programs, megabytes=30, own_network=own_network) as daemon,
        Engine.connect(at(daemon, tmp_path)) as engine,
    ):
        engine.load(store, small, "full:1")
        with pytest.raises(EngineError, match="no space left on device"):
            engine.load(store, big, "full:1")
        assert engine.image_digest("full:1") == small
        assert_clean(engine, "full:1")


@pytest.mark.fault("Engine", "it keeps images in the classic store", "refused: says which setting changes that")
def test_a_classic_store(programs: Path, tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", programs, features={"containerd-snapshotter": False}) as daemon:
        with pytest.raises(EngineError) as caught:
            Engine.connect(at(daemon, tmp_path))
        assert "classic store (overlay2)" in str(caught.value.why)
        assert "containerd-snapshotter" in str(caught.value.fix)
        assert daemon.host in str(caught.value.where)


@pytest.mark.slow
@pytest.mark.fault("Engine", "it is Debian 12's Docker 20.10", "refused: says which is the oldest that works")
def test_an_old_engine(settings: Settings, tmp_path: Path) -> None:
    programs = tmp_path / "bookworm"
    unpack("bookworm", ["docker.io", "containerd"], programs, settings, Quiet())
    with Daemon(tmp_path / "d", programs, features={}) as daemon, pytest.raises(EngineError) as caught:
        Engine.connect(at(daemon, tmp_path))
    assert "it is version 20.10" in str(caught.value.why)
    assert "Docker 26.1 or newer" in str(caught.value.fix)
