"""The base whose interpreter compiles the byte-code of another platform's image: locked, kept, used where it runs."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.file_tree import bytecode_base
from imagegen.image.inputs import contents
from imagegen.lock import dumps
from imagegen.lock.file import loads
from imagegen.lock.model import Lock, LockedBase
from imagegen.mirror.listing import listings
from imagegen.spec.foundation import Base
from tests.support.lock_samples import LOCK, deb
from tests.support.lock_workspace import Workspace

PYTHON = deb("python3.11")
OTHER = LockedBase("debian12-linux-amd64", "debian", "bookworm", LOCK.base.archives, (PYTHON,))
FOREIGN = replace(LOCK, axes={**LOCK.axes, "platform": "linux/arm64"}, bytecode_base=OTHER)


def test_a_lock_that_has_one_is_read_back() -> None:
    assert loads(dumps(FOREIGN)) == FOREIGN


@pytest.mark.parametrize(("machine", "expected"), [("x86_64", OTHER), ("aarch64", None), ("riscv64", None)])
def test_it_is_used_on_machines_of_its_platform(
    machine: str, expected: LockedBase | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert bytecode_base(FOREIGN) == expected
    assert bytecode_base(LOCK) is None


def test_mirrors_and_stores_know_its_packages(tmp_path: Path) -> None:
    assert PYTHON.digest in contents(FOREIGN)
    found = listings(replace(FOREIGN, wheels=(), builds=()), Store(tmp_path))
    assert "python3.11_2.3_amd64.deb" in {name for each in found for name, _ in each.files}


class Archive:
    """Stands in for `base.resolve`: it has python3.11 in `version` for all platforms."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.asked: list[tuple[str, str]] = []

    def resolve(self, requested: Base, platform: str, *_: object) -> LockedBase:
        self.asked.append((requested.name, platform))
        return replace(OTHER, name=requested.name, debs=(replace(PYTHON, version=self.version),))


def locked(tmp_path: Path, archive: Archive, platform: str, monkeypatch: pytest.MonkeyPatch) -> Lock:
    workspace = Workspace(tmp_path)
    workspace.cell = replace(workspace.cell, axes={**workspace.cell.axes, "platform": platform})
    own = replace(workspace.first.base, debs=(PYTHON,))
    workspace.first = replace(workspace.first, axes=workspace.cell.axes, base=own)
    monkeypatch.setattr(base, "resolve", archive.resolve)
    first = workspace.make()
    assert workspace.make(first).bytecode_base == first.bytecode_base
    return first


def test_a_lock_of_another_platform_gets_the_same_interpreter_for_amd64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(PYTHON.version)
    found = locked(tmp_path, archive, "linux/arm64", monkeypatch).bytecode_base
    assert found and found.debs == (PYTHON,)
    assert archive.asked == [("debian12-linux-amd64", "linux/amd64")]  # the second lock kept it


def test_another_version_does_not_count_as_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locked(tmp_path, Archive("3.11.9-1"), "linux/arm64", monkeypatch).bytecode_base is None


def test_a_lock_for_amd64_asks_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(PYTHON.version)
    assert locked(tmp_path, archive, "linux/amd64", monkeypatch).bytecode_base is None
    assert archive.asked == []
