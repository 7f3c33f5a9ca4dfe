"""One engine for all integration tests: the machine's if it will do, else a private one that goes when they end."""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import EngineError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.engine import Engine
from imagegen.image import base
from imagegen.spec.foundation import Base
from tests.support import cosign
from tests.support.machines import Built, Debian, Place, built_in, copy_tree, plain_in, private_engine
from tests.support.small_cell import Site, site_of
from tools.engine import private
from tools.engine.packages import unpack
from tools.engine.private import PACKAGES, SUITE


@pytest.fixture(scope="session")
def settings() -> Settings:
    """The machine's settings. A test that fills a store uses one of its own under tmp_path."""
    return Settings.from_environment(os.environ)


@pytest.fixture(scope="session")
def engine(settings: Settings, shared: Path) -> Iterator[Engine]:
    """The machine's engine, or a private one, which the last of the test processes that use it removes."""
    started = shared / "engine.started"
    with (shared / "engine.lock").open("w") as users:
        # A lock of its own for the start: a process that waited for `users` alone would wait until the others end.
        with (shared / "engine.starting").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                engine = Engine.connect(settings)
            except EngineError:
                other = private.up(settings, Quiet())
                started.touch()
                os.environ.update(other.environment(os.environ))
                engine = Engine.connect(Settings.from_environment(os.environ))
        try:
            with engine:
                yield engine
        finally:
            with suppress(BlockingIOError):  # another process uses it
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if started.exists():
                    private.down(settings, Quiet())
                    started.unlink()


@pytest.fixture(scope="session")
def busybox(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A static program that is a whole image's worth of tools, from Debian."""
    target: Path = tmp_path_factory.mktemp("busybox") / "root"
    unpack(SUITE, ["busybox-static"], target, settings, Quiet())
    return (target / "usr/bin/busybox").read_bytes()


@pytest.fixture(scope="session")
def docker_registry(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which Debian's docker-registry is unpacked."""
    target: Path = tmp_path_factory.mktemp("docker-registry") / "root"
    unpack(SUITE, ["docker-registry"], target, settings, Quiet())
    return target


@pytest.fixture(scope="session")
def verifiers(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Debian's cosign and oras."""
    return cosign.unpacked(tmp_path_factory.mktemp("verifiers") / "root", settings)


@pytest.fixture(scope="session")
def debian(settings: Settings, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """A base of today's packages, which the first test process builds, and of which each has a copy in hard links."""
    with (shared / "debian.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        record = shared / "debian.pickle"
        if not record.exists():
            found = _debian(Store(shared / "debian"), settings)
            record.write_bytes(pickle.dumps((found.requested, found.locked, found.layer)))
    requested, locked, layer = pickle.loads(record.read_bytes())
    store = Store(tmp_path_factory.mktemp("base") / "store")
    copy_tree(shared / "debian", store.root)
    return Debian(requested, locked, layer, store, base.rootfs(locked, Context(store, settings, Quiet())))


def _debian(store: Store, settings: Settings) -> Debian:
    packages = {"python3": "the interpreter", "ca-certificates": "a package that runs much when it is installed"}
    requested = Base("debian12", "debian", "bookworm", None, "debian12", "2.36", packages, "for tests")
    locked = base.resolve(requested, "linux/amd64", settings, Quiet())
    layer = base.build(locked, Context(store, settings, Quiet()))
    return Debian(requested, locked, layer, store, base.rootfs(locked, Context(store, settings, Quiet())))


@pytest.fixture(scope="session")
def site(debian: Debian, shared: Path) -> Site:
    """A small cell, all its files on this machine, and what it gives: the first test process builds it for all."""
    record = shared / "site.pickle"
    with (shared / "site.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        if not record.exists():
            record.write_bytes(pickle.dumps(site_of(shared / "site", debian)))
    return replace(pickle.loads(record.read_bytes()), warm=debian.store.root)


@pytest.fixture(scope="session")
def machine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A machine with an empty store; its images go into the session's engine."""
    return Place(tmp_path_factory.mktemp("machine"), os.environ.get("DOCKER_HOST"))


@pytest.fixture(scope="session")
def sb3_maskable(machine: Place, shared: Path) -> Built:
    return built_in(machine, "sb3-maskable", shared / "sb3-maskable")


@pytest.fixture(scope="session")
def cpu_grpo(machine: Place, shared: Path) -> Built:
    return built_in(machine, "cpu-grpo", shared / "cpu-grpo")


@pytest.fixture(scope="session")
def plain(machine: Place, cpu_grpo: Built) -> Built:
    """A small image of real wheels; it shares its base with `cpu_grpo`."""
    return plain_in(machine, cpu_grpo.lock)


@pytest.fixture(scope="session")
def programs(engine: Engine, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Docker's packages of the private engine, which may be there already, on the file system of the tests' files."""
    target: Path = tmp_path_factory.mktemp("docker") / SUITE
    if other := private_engine():
        if other.packages.stat().st_dev == target.parent.stat().st_dev:
            return other.packages
        subprocess.run(["cp", "-a", str(other.packages), str(target)], check=True)
        return target
    unpack(SUITE, PACKAGES, target, settings, Quiet())
    return target


@pytest.fixture
def shell(engine: Engine) -> dict[str, str]:
    """The environment of a user who has `docker` with its buildx plugin on PATH."""
    return dict(os.environ)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another place, time zone, language and umask."""
    work = tmp_path / "another place"
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work).replace(" ", "-"))
    work.rename(tempfile.gettempdir())
    for name, value in {"TZ": "Pacific/Kiritimati", "LANG": "tr_TR.UTF-8", "LC_ALL": "C", "HOME": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    time.tzset()
    before = os.umask(0o077)
    yield
    os.umask(before)
    monkeypatch.undo()
    time.tzset()
