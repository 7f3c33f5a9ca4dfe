"""A driver mounted at /usr/local/nvidia when a container starts, as GKE does it: loader, Triton and linkers find it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from imagegen import spec as matrix
from imagegen.app.build import BuildOptions, build_image
from imagegen.compat.models import Models
from imagegen.core.config import Settings
from imagegen.engine import Engine
from imagegen.lock.model import Lock
from imagegen.run import doctor
from imagegen.spec.model import Cell, Declarations
from tests.support.container_shell import Shell
from tests.support.machines import Debian, committed
from tests.support.matrix_samples import SHIPPED
from tests.support.session import session_of
from tests.support.small_cell import write_project

sys.path.insert(0, str(Path(__file__).parents[2] / "imagegen/checks"))  # as in a container
from smoke import stub

pytestmark = pytest.mark.integration

CELL = "trl-vllm-cu130-py311"
LIBRARY = "/usr/local/nvidia/lib64/libcuda.so.1"
LOAD = "import ctypes; ctypes.CDLL('libcuda.so.1')"


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the options that mount a driver: a stub of libcuda, and a program called nvidia-smi."""
    root = tmp_path_factory.mktemp("driver")
    for name in ("lib64", "bin"):
        (root / name).mkdir()
    stub.write(root / "lib64", ["cuLaunchKernel"])
    (root / "bin/nvidia-smi").write_text("#!/bin/sh\necho smi\n")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    return ["-v", f"{root}:/usr/local/nvidia:ro", "--shm-size", "2g"]


@contextmanager
def image(engine: Engine, debian: Debian, settings: Settings, lock: Lock) -> Iterator[Shell]:
    """Build an image of `lock` with the variables that the shipped cell sets."""
    (cell,) = matrix.load([SHIPPED]).select(CELL)
    lock = replace(lock, cell=CELL, axes={**lock.axes, "cuda": "cu130"}, env=cell.env)
    undeclared = cast("Cell", SimpleNamespace(id=CELL, declarations=Declarations()))
    options = BuildOptions(test=False, audit=False)
    built = build_image(session_of(debian.store, settings), undeclared, lock, engine, options)
    try:
        yield Shell(engine, built.tags[1])
    finally:
        for tag in built.tags:
            engine.client.api.remove_image(tag, force=True)


@pytest.fixture(scope="module")
def shell(
    engine: Engine, debian: Debian, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    root = tmp_path_factory.mktemp("gpu")
    lock = write_project(root / "project", root / "links", debian)
    own = replace(settings, find_links=(*settings.find_links, str(root / "links")))
    with image(engine, debian, own, lock) as found:
        yield found


def test_the_loader_finds_a_driver_that_is_mounted(shell: Shell, mounted: list[str]) -> None:
    done = shell.run("python", "-c", LOAD, options=mounted)
    assert (done.returncode, "does not find the driver" in done.stderr) == (0, False), done.stderr
    assert shell.run("nvidia-smi", options=mounted).stdout == "smi\n"
    assert shell.run("sh", "-c", "command -v python", options=mounted).stdout == "/opt/venv/bin/python\n"


def test_nothing_is_there_without_a_mount_and_users_cannot_put_it_there(shell: Shell) -> None:
    script = "ls -d /usr/local/nvidia; mkdir /usr/local/nvidia; stat -c '%u:%g %a' /usr/local"
    done = shell.run("sh", "-c", script, options=["-u", "12345:0", "-e", "IMAGEGEN_PREFLIGHT=0"])
    assert done.stdout == "0:0 755\n"
    assert shell.run("python", "-c", LOAD).returncode == 1


@pytest.mark.parametrize("value", ["", "/opt/lib"])
def test_a_driver_that_is_not_found_is_named(shell: Shell, mounted: list[str], value: str) -> None:
    options = [*mounted, "-e", f"LD_LIBRARY_PATH={value}"]
    done = shell.run("python", "-c", LOAD, options=options)
    assert done.returncode == 1
    assert f"the loader does not find the driver, which is mounted: {LIBRARY}" in done.stderr
    name = f"imagegen-test-driver-{bool(value)}"
    started = shell.docker("run", "-d", "--name", name, *options, shell.ref, "sleep", "60")
    try:
        assert started.returncode == 0, started.stderr
        found = doctor.examine_container(shell.engine, name, Models(""))
    finally:
        shell.docker("rm", "-f", name)
    (fault,) = (each for each in found.findings if each.check == "loader")
    assert (fault.severity, LIBRARY in fault.text) == ("error", True)
    assert "gpu" not in {each.check for each in found.findings}


TRITON = """
from triton.backends.nvidia import driver
print(driver.libcuda_dirs())
driver.CudaUtils()
"""
LINK = "echo 'int cuInit(int); int main() { return cuInit(0); }' | gcc -x c -o /tmp/linked - -lcuda && /tmp/linked"


@pytest.mark.slow
def test_triton_and_linkers_find_a_driver_that_is_mounted(
    engine: Engine, debian: Debian, settings: Settings, mounted: list[str]
) -> None:
    """The base and the Triton of the locked image; torch itself, 3 GB, asks the loader as `LOAD` does."""
    locked = committed(CELL)
    triton = tuple(wheel for wheel in locked.wheels if wheel.name == "triton")
    lock = replace(locked, wheels=triton, builds=(), copies=(), record=None)
    with image(engine, debian, settings, lock) as shell:
        done = shell.run("python", "-c", TRITON, options=mounted)
        assert done.stdout == "['/usr/local/nvidia/lib64']\n", done.stderr
        assert shell.run("sh", "-c", LINK, options=mounted).returncode == stub.NO_DEVICE
        unset = [*mounted, "-e", "LD_LIBRARY_PATH=", "-e", "LIBRARY_PATH="]
        assert shell.run("python", "-c", TRITON, options=unset).returncode == 1
        assert shell.run("sh", "-c", LINK, options=unset).returncode == 1
