"""A cell's lock as what an audit is about: packages without the files that overrides leave out, base, GPUs, imports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.audit.model import InstalledDeb, OsRelease
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image.inventory import cell_subject
from imagegen.lock.model import FileConflict, LockedGpus
from tests.support.elf_files import make_elf
from tests.support.golden import Golden
from tests.support.layer_inputs import GPU, cell_of, lock_of, locked
from tests.support.wheels import WHEEL


@pytest.mark.usefixtures("rootfs")
def test_a_subject_is_what_the_image_would_hold(
    store: Store, tmp_path: Path, settings: Settings, golden: Golden
) -> None:
    one = locked(store, tmp_path, "one", {"s.so": make_elf(), "one-1.0.data/scripts/tool": b"#!/bin/sh\n"})
    two = locked(store, tmp_path, "two", {"s.so": make_elf(exported=["two"])})
    file_conflicts = (
        FileConflict("s-is-twos", "two", ("one",), "*/site-packages/s.so", "b"),
        FileConflict("tool-is-twos", "two", ("one",), "/opt/venv/bin/*", "b"),
    )
    lock = replace(lock_of(one, two), file_conflicts=file_conflicts, gpu=LockedGpus(("9.0",), "580.65.06"))
    subject = cell_subject.cell_subject(
        lock, cell_of("13.0", one=("one", "one.deep")), Context(store, settings, Quiet())
    )
    assert (subject.name, subject.python, subject.driver, subject.gpus) == (lock.cell, "3.11", "580.65.06", (GPU,))
    assert subject.cuda is True
    assert [(package.name, package.imports) for package in subject.packages] == [
        ("one", ("one", "one.deep")),
        ("two", ()),
    ]
    assert [package.entry_points for package in subject.packages] == [("one.start",), ()]
    golden.check(subject.omits)
    assert subject.excused == {"s.so", "../../../bin/tool"}
    assert not subject.packages[0].files.keys() & subject.excused
    assert "s.so" in subject.packages[1].files
    assert subject.system
    assert subject.system.paths["libc.so.6"] == "/lib/libc.so.6"
    assert subject.system.interpreter
    assert cell_subject.cell_subject(lock_of(one), cell_of(None), Context(store, settings, Quiet())).cuda is False


def test_nothing_is_read_twice(
    store: Store, tmp_path: Path, settings: Settings, rootfs: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    lock = lock_of(locked(store, tmp_path, "one", {"one.so": make_elf()}))
    subject = cell_subject.cell_subject(lock, cell_of(None), Context(store, settings, Quiet()))
    store.path(lock.wheels[0].file.digest).unlink()
    monkeypatch.setattr("imagegen.image.base.rootfs", None)
    assert cell_subject.cell_subject(lock, cell_of(None), Context(store, settings, Quiet())) == subject
    golden.check(cell_subject.blobs(lock, store).values())


@pytest.mark.usefixtures("rootfs")
def test_what_a_wheel_says_of_itself_is_known(store: Store, tmp_path: Path, settings: Settings) -> None:
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\nRequires-Dist: torch (==2)\nRequires-Dist: ray\n"
        "License-Expression: MIT\n",
        "WHEEL": WHEEL + "Tag: py2-none-any\n",
    }
    wheel = locked(store, tmp_path, "one", {}, metadata)
    (package,) = cell_subject.cell_subject(lock_of(wheel), cell_of(None), Context(store, settings, Quiet())).packages
    assert package.requires == ("torch (==2)", "ray")
    assert package.tags == ("py3-none-any", "py2-none-any")
    assert package.licence.expression == "MIT"


def test_what_dpkg_says_of_a_base_is_known(store: Store, tmp_path: Path, settings: Settings, rootfs: Path) -> None:
    (rootfs / "var/lib/dpkg").mkdir(parents=True)
    (rootfs / "var/lib/dpkg/status").write_text(
        "Package: cpp\nStatus: install ok installed\nArchitecture: amd64\nSource: gcc-defaults (1.2)\nVersion: 4:12\n"
    )
    (rootfs / "etc").mkdir()
    (rootfs / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\n')
    lock = lock_of(locked(store, tmp_path, "one", {}))
    for _ in range(2):  # read, and remembered
        system = cell_subject.cell_subject(lock, cell_of(None), Context(store, settings, Quiet())).system
        assert system
        assert system.debs == {"cpp": InstalledDeb("4:12", "amd64", "gcc-defaults", "1.2", None)}
        assert system.release == OsRelease("ubuntu", "22.04", "jammy")
