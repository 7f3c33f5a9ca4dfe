"""A lock from the real index, and an sdist made into a wheel by the real base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import base, matrix
from imagegen.config import Settings
from imagegen.data import shipped
from imagegen.errors import SandboxError
from imagegen.lock import dumps, fetch, make, read, with_indexes, write
from imagegen.lock.model import LockedWheel
from imagegen.matrix.model import Cell, Requirement
from imagegen.progress import Quiet
from imagegen.store import Store

pytestmark = pytest.mark.integration


def shipped_cell() -> Cell:
    return matrix.load([shipped("matrices")]).select("cpu-grpo")[0]


def small(cell: Cell) -> Cell:
    """hydra-core alone, at a version that came years after the last wheel of its parser's runtime could have."""
    wanted = next(each for each in cell.requirements if each.component.name == "hydra-core")
    return replace(cell, requirements=(Requirement(wanted.component, ">=1.3", "test", "pypi"),))


def test_hydra_core_with_its_sdist(settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, store=tmp_path / "cache" / "store")
    store, cell = Store(settings.store), small(shipped_cell())
    options = {"upgrade": False, "upgrade_packages": (), "settings": settings, "store": store, "rules": ()}
    lock = make(cell, previous=None, as_of=None, progress=Quiet(), **options)  # type: ignore[arg-type]
    runtime = next(wheel for wheel in lock.wheels if wheel.sdist)
    assert (runtime.name, runtime.version) == ("antlr4-python3-runtime", "4.9.3")
    assert next(wheel for wheel in lock.wheels if wheel.name == "hydra-core").version >= "1.3"
    write(lock, tmp_path / "lock.toml")
    assert read(tmp_path / "lock.toml") == lock
    assert "://" not in dumps(lock)
    again = make(cell, previous=lock, as_of=None, progress=Quiet(), **options)  # type: ignore[arg-type]
    assert again is lock

    # A store that holds the base alone builds the same wheel again.
    other = replace(settings, store=tmp_path / "other" / "store")
    (tmp_path / "other").mkdir()
    fresh = Store(other.store)
    fresh_root = base.rootfs(lock.base, store, settings, Quiet())
    (other.store / "rootfs" / fresh_root.name).symlink_to(fresh_root)
    fetch(lock, fresh, with_indexes(other, cell.indexes), Quiet())
    assert fresh.read(f"sha256:{runtime.file.sha256}") == store.read(f"sha256:{runtime.file.sha256}")
    _spoiled_sdist_is_contained(runtime, store, fresh_root)


def _spoiled_sdist_is_contained(runtime: LockedWheel, store: Store, rootfs: Path) -> None:
    from imagegen.lock import sdist

    assert runtime.sdist
    workshop = sdist.Workshop("sha256:" + "0" * 64, "/usr/bin/python3.11", lambda: rootfs, store, Quiet())
    without = replace(runtime.sdist, build_requires=())
    with pytest.raises(SandboxError, match=r"antlr4-python3-runtime-4\.9\.3\.tar\.gz could not be made") as caught:
        sdist.build(runtime.name, runtime.version, without, workshop)
    assert "setuptools" in str(caught.value)
