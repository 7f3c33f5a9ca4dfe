"""Sources are looked at before a toolchain is fetched for them."""

from __future__ import annotations

import gzip
import os
import tarfile
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.layer_tar import Allowance
from imagegen.core.store import Store
from imagegen.lock import build_sources
from imagegen.lock.model import LockedPatch
from imagegen.wheels.builds.wheel_check import require_sources
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.source_builds import BUILD, packed

SETUP = b"one\ntwo\n"
PATCH = b"--- a/setup.py\n+++ b/setup.py\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"


def look(work_dir: Path, archive: bytes, *patches: bytes) -> None:
    store = Store(work_dir / "store")
    held = tuple(
        LockedPatch(f"{number}.patch", store.write(patch).removeprefix("sha256:"))
        for number, patch in enumerate(patches)
    )
    source = replace(BUILD.source, sha256=store.write(archive).removeprefix("sha256:"), size=len(archive))
    settings = Settings.from_environment({"HOME": str(work_dir), "PATH": os.defpath})
    require_sources(replace(BUILD, source=source, patches=held), store, settings)


def stating(text: str) -> bytes:
    return packed({"setup.py": SETUP, "pyproject.toml": text.encode()})


def test_sources_that_take_their_patches_pass(tmp_path: Path) -> None:
    look(tmp_path, packed({"setup.py": SETUP}), PATCH)


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (PATCH.replace(b" one", b" else"), "0.patch: error: patch failed: setup.py:1"),
        (PATCH.replace(b"setup.py", b"gone.py"), "gone.py: No such file"),
        (PATCH.replace(b"b/setup.py", b"../../setup.py"), "0.patch"),
        (b"--- a/setup.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n", "removes or renames setup.py"),
        (b"no patch\n", "0.patch"),
        (b"", "0.patch"),
    ],
)
def test_a_patch_that_does_not_apply_is_refused_with_its_name(tmp_path: Path, patch: bytes, why: str) -> None:
    with raises("source-build-sources-invalid") as caught:
        look(tmp_path, packed({"setup.py": SETUP}), patch)
    assert why in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_patch_that_was_applied_before_is_refused(tmp_path: Path) -> None:
    with raises("source-build-sources-invalid"):
        look(tmp_path, packed({"setup.py": SETUP}), PATCH, PATCH)


def test_a_file_that_is_not_an_archive_is_reported(tmp_path: Path) -> None:
    with raises("source-build-sources-invalid"):
        look(tmp_path, b"source")


@pytest.mark.parametrize("names", [["a" * 300], ["a", "a/b"]])
def test_a_full_disk_is_reported_for_the_sources(tmp_path: Path, names: list[str]) -> None:
    with raises("source-build-sources-invalid") as caught:
        look(tmp_path, packed(dict.fromkeys(names, b"")))
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("stated", ['name = "demo-ext"\nversion = "1.1"', 'name = "other"\nversion = "1.0"'])
def test_sources_of_another_release_are_refused(tmp_path: Path, stated: str, golden: Golden) -> None:
    with raises("source-build-wrong-release") as caught:
        look(tmp_path, stating(f"[project]\n{stated}\n"))
    golden.check(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '[project]\nname = "Demo.Ext"\nversion = "1.0.0+cu130"\n',
        '[project]\nname = "demo-ext"\ndynamic = ["version"]\n',
        '[build-system]\nrequires = ["setuptools"]\n',
        "project = 1\n",
        "no toml",
        "deep = " + 9999 * "[",
        '[project]\nname = "demo-ext"\nversion = "one"\n',
    ],
)
def test_what_only_the_build_can_check_is_left_to_it(tmp_path: Path, text: str) -> None:
    look(tmp_path, stating(text))


@pytest.mark.fault(
    "Source builds",
    "an archive of sources with a header of a gigabyte, with names of 900,000 bytes, or with a million members",
    "refused before it is unpacked, within bounded memory",
)
@pytest.mark.parametrize("odd", ["header", "name", "members"])
def test_sources_without_bound_are_refused(tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    monkeypatch.setattr(build_sources, "Allowance", partial(Allowance, text=2000))
    archives = {
        "header": gzip.compress(info.tobuf() + bytes(32 << 20)),
        "name": packed({"a" * 900_000: b""}),
        "members": packed({f"{number}": b"" for number in range(50)}),
    }
    archive = archives[odd]
    tracemalloc.start()
    try:
        with raises("source-build-sources-invalid"):
            look(tmp_path, archive)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
