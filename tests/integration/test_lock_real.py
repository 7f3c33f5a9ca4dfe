"""A lock from the real index, and an sdist made into a wheel by a real base."""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import spec as matrix
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.data import shipped
from imagegen.core.errors import SandboxError
from imagegen.core.net.package_index import with_indexes
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image.inputs import fetch
from imagegen.lock import contradictions, dumps, fetch_sources, read, sdist, write
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.stages import LockRequest, lock_cell
from imagegen.lock.model import Lock, LockedFile, LockedWheel
from imagegen.spec.model import Cell, Requirement
from imagegen.wheels.catalogue import Catalogue
from imagegen.wheels.selector import LocalWheelSelector
from tests.support.interpreters import LOCKED
from tests.support.machines import Debian

pytestmark = pytest.mark.integration

# Versions are asked for: PyPI grows, and the newest hydra-core needs not the same runtime for ever.
ASKED = {"hydra-core": "==1.3.*", "tensorboard": ">=2.20"}


@pytest.fixture(scope="module")
def cell(debian: Debian) -> Cell:
    cell = matrix.load([shipped("matrices")]).select("cpu-grpo")[0]
    required = tuple(
        Requirement(each.component, ASKED[each.component.name], "test", "pypi")
        for each in cell.requirements
        if each.component.name in ASKED
    )
    return replace(cell, requirements=required, base=debian.requested)


def relock(cell: Cell, previous: Lock, settings: Settings, store: Store) -> Lock:
    chooser = LocalWheelSelector(Catalogue(), (), Context(store, settings, Quiet()))
    return lock_cell(LockRequest(cell, LockOptions(), (), chooser, Context(store, settings, Quiet())), previous)


def test_a_real_stack_with_an_sdist(cell: Cell, settings: Settings, debian: Debian, tmp_path: Path) -> None:
    settings = with_indexes(replace(settings, store=debian.store.root), cell.indexes)
    old_uv = LockedWheel("uv", "0", LockedFile("uv-0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
    based = Lock(
        cell=cell.id,
        image=cell.image,
        axes=cell.axes,
        inputs=cell.inputs,
        uv=old_uv,
        as_of="2026-11-20T00:00:00Z",
        base=debian.locked,
        interpreter=LOCKED,
        wheels=(),
        env=(),
    )
    lock = relock(cell, based, settings, debian.store)
    assert lock.uv.version == importlib.metadata.version("uv")
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    # --only-binary would step hydra-core back by years: its parser's runtime has no wheel.
    assert versions["hydra-core"].startswith("1.3.")
    assert versions["antlr4-python3-runtime"] == "4.9.3"
    write(lock, tmp_path / "lock.toml")
    assert read(tmp_path / "lock.toml") == lock
    assert "://" not in dumps(lock)
    assert relock(cell, lock, settings, debian.store) is lock

    # Another machine, whose store holds the base alone, makes the same wheel from the sdist.
    fetch(lock, Context(debian.store, settings, Quiet()))
    contents = {wheel.name: debian.store.read(f"sha256:{wheel.file.sha256}") for wheel in lock.wheels}
    runtime = next(wheel for wheel in lock.wheels if wheel.sdist)
    assert runtime.sdist
    parts = [runtime.sdist.file, *(each.file for each in runtime.sdist.build_requires)]
    for file in [*parts, *(wheel.file for wheel in lock.wheels)]:
        debian.store.path(f"sha256:{file.sha256}").unlink(missing_ok=True)
    shutil.rmtree(debian.store.root / "records" / "sdist")
    fetch(lock, Context(debian.store, settings, Quiet()))
    assert {wheel.name: debian.store.read(f"sha256:{wheel.file.sha256}") for wheel in lock.wheels} == contents

    # Its backend sees what the lock gives it and nothing else.
    workshop = sdist.SdistBuilder("sha256:" + "0" * 64, LOCKED.path, lambda: debian.rootfs, debian.store, Quiet())
    with pytest.raises(SandboxError, match=r"antlr4-python3-runtime-4\.9\.3\.tar\.gz could not be made") as caught:
        sdist.build(runtime.name, runtime.version, replace(runtime.sdist, build_requires=()), workshop)
    assert "setuptools" in str(caught.value)


def test_a_component_that_has_no_wheel_is_locked_as_a_build(settings: Settings, tmp_path: Path) -> None:
    """On the base of a committed lock, which need not be fetched for it."""
    cells = matrix.load([shipped("matrices"), shipped("wheels")])
    (cell,) = cells.select("hopper-vllm-cu130-py311-flash-attn")
    names = {"torch", "flash-attn", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvcc", "nvidia-nvvm"}
    cell = replace(cell, requirements=tuple(each for each in cell.requirements if each.component.name in names))
    model, store = read(shipped("locks") / "hopper-vllm-cu130-py311.toml"), Store(tmp_path / "store")
    settings = with_indexes(replace(settings, store=store.root, find_links=()), cell.indexes)
    lock = relock(cell, replace(model, inputs=cell.inputs), settings, store)
    (build,) = lock.builds
    assert (build.name, build.version, build.env["FLASH_ATTN_CUDA_ARCHS"]) == ("flash-attn", "2.8.3", "90")
    assert {"torch", "triton", "nvidia-cuda-nvcc", "nvidia-cuda-runtime"} <= set(build.against)
    assert "einops" in {wheel.name for wheel in lock.wheels} - set(build.against)
    assert contradictions(lock, cell) == ()
    write(lock, tmp_path / "lock.toml")
    assert read(tmp_path / "lock.toml") == lock
    assert relock(cell, lock, settings, store) is lock
    fetch_sources(lock.builds, cell.recipes, Context(store, settings, Quiet()))
    assert all(store.has(file.digest) for file in (build.source, *(each.file for each in build.build_requires)))
