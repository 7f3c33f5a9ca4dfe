"""One engine for all integration tests: the machine's if it will do, else a private one that goes when they end."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.data import shipped
from imagegen.core.errors import EngineError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.layers.image import local_tags
from imagegen.plan import lock, matrix
from imagegen.plan.matrix.model import Base
from imagegen.run.embedded_engine import private
from imagegen.run.engine import Engine
from imagegen.run.engine.connection import SUITE
from tests.support import cosign
from tests.support.machines import Built, Debian, Place, committed, relocked
from tests.support.small_cell import Site, site_of


@pytest.fixture(scope="session")
def settings() -> Settings:
    """The machine's settings. A test that fills a store uses one of its own under tmp_path."""
    return Settings.from_environment(os.environ)


@pytest.fixture(scope="session")
def engine(settings: Settings) -> Iterator[Engine]:
    started = False
    try:
        found = Engine.connect(settings)
    except EngineError:
        private.up(settings, Quiet())
        started = True
        found = Engine.connect(settings)
    try:
        with found:
            yield found
    finally:
        if started:
            private.down(settings, Quiet())


@pytest.fixture(scope="session")
def busybox(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A static program that is a whole image's worth of tools, from Debian."""
    target: Path = tmp_path_factory.mktemp("busybox") / "root"
    private.unpack(SUITE, ["busybox-static"], target, settings, Quiet())
    return (target / "usr/bin/busybox").read_bytes()


@pytest.fixture(scope="session")
def docker_registry(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which Debian's docker-registry is unpacked."""
    target: Path = tmp_path_factory.mktemp("docker-registry") / "root"
    private.unpack(SUITE, ["docker-registry"], target, settings, Quiet())
    return target


@pytest.fixture(scope="session")
def verifiers(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Debian's cosign and oras."""
    return cosign.unpacked(tmp_path_factory.mktemp("verifiers") / "root", settings)


@pytest.fixture(scope="session")
def debian(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Debian:
    packages = {"python3": "the interpreter", "ca-certificates": "a package that runs much when it is installed"}
    requested = Base("debian12", "debian", "bookworm", None, "debian12", "2.36", packages, "for tests")
    store = Store(tmp_path_factory.mktemp("base") / "store")
    locked = base.resolve(requested, settings, Quiet())
    layer = base.build(locked, store, settings, Quiet())
    return Debian(requested, locked, layer, store, base.rootfs(locked, store, settings, Quiet()))


@pytest.fixture(scope="session")
def site(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A small cell, all its files on this machine, and what it gives."""
    return site_of(tmp_path_factory.mktemp("site"), debian)


@pytest.fixture(scope="session")
def machine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A machine with an empty store; its images go into the session's engine."""
    host = engine.private.docker_host if engine.private else os.environ.get("DOCKER_HOST")
    return Place(tmp_path_factory.mktemp("machine"), host)


def built_in(machine: Place, image: str, shared: Path) -> Built:
    """Build an image once for all test processes: the first builds into `shared`, the others copy its machine.

    Its store starts empty, so that the first build has the network alone. Into the store first: an engine that was
    there before may hold the image already.
    """
    with Path(f"{shared}.lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        first = not shared.exists()
        if first:
            machine.run("build", image, "--output", f"oci:{image}", "--scratch-base")
            said = machine.run("build", image, "--no-test", "--scratch-base")
        else:
            copy_tree(shared / "machine", machine.root)
            said = subprocess.CompletedProcess(**json.loads((shared / "said.json").read_text()))
        (cell,) = matrix.load([shipped("matrices")]).select(image)
        locked = committed(cell.id)
        if relocked(said):  # the archive has moved on: this machine's lock is its own, recorded like the other
            own = machine.root / "locks" / f"{cell.id}.toml"
            if first:
                lock.write(lock.read(machine.cache / "imagegen" / "scratch" / f"{cell.id}.toml"), own)
                machine.run("lock", image, "--record")
            locked = lock.read(own)
        if first:
            copy_tree(machine.root, shared / "machine")
            (shared / "said.json").write_text(json.dumps(vars(said)))
    return Built(local_tags(locked)[1], locked, cell.declarations, said)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory by hard links; files that `target` has stay."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-aln", f"{source}/.", target], check=True)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this session's, the same in each of pytest-xdist's processes."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def sb3_maskable(machine: Place, shared: Path) -> Built:
    return built_in(machine, "sb3-maskable", shared / "sb3-maskable")


@pytest.fixture(scope="session")
def cpu_grpo(machine: Place, shared: Path) -> Built:
    return built_in(machine, "cpu-grpo", shared / "cpu-grpo")
