"""Wheels are scanned for the audit while they become layers, whose bytes do not change by it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.audit import collect, sparse_copy
from imagegen.audit.examine import examine
from imagegen.audit.model import CodeTarget
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.progress import Quiet
from imagegen.core.store import Store, upkeep
from imagegen.core.zip_archive import ZipArchive, ZipEntry
from imagegen.image.inventory.cell_subject import blobs
from imagegen.image.layers import assembly as assembling
from imagegen.image.layers import layer, scan
from imagegen.lock.model import FileConflict, Lock, LockedWheel
from tests.support.elf_files import make_elf, make_fatbin
from tests.support.golden import Golden
from tests.support.layer_inputs import lock_of, locked

assemble = assembling.assemble
pytestmark = pytest.mark.usefixtures("compiled_on_host")
LIBRARY = make_elf(needed=["libc.so.6"], exported=["name"], fatbin=make_fatbin([[CodeTarget("sass", 90)]]))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members that were unpacked, each time that one was."""
    names: list[str] = []
    chunks = ZipArchive.chunks

    def counted(self: ZipArchive, entry: ZipEntry) -> Iterator[bytes]:
        names.append(entry.name)
        return chunks(self, entry)

    monkeypatch.setattr(ZipArchive, "chunks", counted)
    return names


def demo(store: Store, tmp_path: Path) -> tuple[Lock, LockedWheel]:
    wheel = locked(store, tmp_path, "one", {"one/lib.so": LIBRARY, "one/__init__.py": b"x = 1\n"})
    return lock_of(wheel), wheel


@pytest.mark.usefixtures("empty_base")
def test_a_build_sees_what_the_wheel_says(
    store: Store, tmp_path: Path, settings: Settings, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, wheel = demo(store, tmp_path)
    built = assemble(lock, Context(store, settings, Quiet()))
    assert read.count("one/lib.so") == read.count("one/__init__.py") == 1
    read.clear()
    seen = scan.scan_wheel(store, wheel, "3.11")
    assert not read
    assert seen.files["one/lib.so"] == examine(
        LIBRARY, size=len(LIBRARY), sha256=hashlib.sha256(LIBRARY).hexdigest(), executable=False
    )
    assert seen.tags == ("py3-none-any",)
    assert {"one/__init__.py", "one-1.0.dist-info/RECORD", "one-1.0.dist-info/INSTALLER"} < seen.files.keys()

    other = Store(tmp_path / "other")
    other.write(store.read(wheel.file.digest))
    assert scan.scan_wheel(other, wheel, "3.11") == seen  # of the wheel alone, and no layer is made
    other.write(bytes(1024))
    monkeypatch.setattr(layer, "WheelScanner", None)  # the scan is cached: no scanner is started
    assert assemble(lock, Context(other, settings, Quiet())) == built


def test_one_file_under_two_versions_is_two_packages(store: Store, tmp_path: Path) -> None:
    """A build's local label is in the file's name alone."""
    _, wheel = demo(store, tmp_path)
    labelled = replace(
        wheel, version="1.0+torch2.8", file=replace(wheel.file, filename="one-1.0+torch2.8-py3-none-any.whl")
    )
    assert [scan.scan_wheel(store, each, "3.11").version for each in (wheel, labelled)] == ["1.0", "1.0+torch2.8"]


@pytest.mark.usefixtures("empty_base")
def test_facts_that_are_lost_or_damaged_are_made_of_the_wheel(store: Store, tmp_path: Path, settings: Settings) -> None:
    lock, wheel = demo(store, tmp_path)
    assemble(lock, Context(store, settings, Quiet()))
    seen = scan.scan_wheel(store, wheel, "3.11")
    for harm in (Path.unlink, lambda path: (path.chmod(0o644), path.write_bytes(bytes(path.stat().st_size)))):
        blob = scan.recorded_blob(store, wheel, "3.11")
        assert blob
        harm(store.path(blob.digest))
        assert scan.scan_wheel(Store(store.root), wheel, "3.11") == seen


@pytest.mark.usefixtures("empty_base")
def test_files_that_no_layer_holds_are_seen_too(
    store: Store, tmp_path: Path, settings: Settings, read: list[str]
) -> None:
    """The file of an override is in place of the others', and of equal files in one layer there is one."""
    wheels = [
        locked(store, tmp_path, name, {"lib.so": LIBRARY, "s.so": LIBRARY + name.encode()}) for name in ("one", "two")
    ]
    lock = replace(lock_of(*wheels), file_conflicts=(FileConflict("r", "two", ("one",), "*/site-packages/s.so", "b"),))
    assemble(lock, Context(store, settings, Quiet()))
    assert sorted(name for name in read if name.endswith(".so")) == ["lib.so", "lib.so", "s.so", "s.so"]
    for wheel in wheels:
        files = scan.scan_wheel(store, wheel, "3.11").files
        assert {name for name, file in files.items() if file.elf} == {"lib.so", "s.so"}


@pytest.mark.usefixtures("empty_base")
def test_a_large_file_made_in_another_way_is_read_twice(
    store: Store, tmp_path: Path, settings: Settings, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables that a loader reads lie where the copy leaves bytes out as machine code."""
    monkeypatch.setattr(collect, "IN_MEMORY", 0)
    monkeypatch.setattr(collect, "left_out", lambda *_: [sparse_copy.FileRange(64, 500, searched=False)])
    lock, wheel = demo(store, tmp_path)
    assemble(lock, Context(store, settings, Quiet()))
    assert read.count("one/lib.so") == 2
    elf = scan.scan_wheel(store, wheel, "3.11").files["one/lib.so"].elf
    assert elf
    assert elf.exported == {"name"}


@pytest.mark.usefixtures("empty_base")
def test_facts_are_kept_as_long_as_a_lock_names_the_wheel(
    store: Store, tmp_path: Path, settings: Settings, golden: Golden
) -> None:
    lock, wheel = demo(store, tmp_path)
    assemble(lock, Context(store, settings, Quiet()))
    blob = scan.recorded_blob(store, wheel, "3.11")
    assert blob
    digest = blob.digest
    golden.check(blobs(lock, store))
    assert digest in upkeep.blobs(store)
    later = 2 * upkeep.YOUNG + store.path(digest).stat().st_mtime
    upkeep.collect(store, [str(digest)], later)
    assert scan.recorded_scan(store, wheel, "3.11")
    upkeep.collect(store, [], 2 * upkeep.YOUNG + later)
    assert scan.recorded_scan(store, wheel, "3.11") is None


@pytest.mark.usefixtures("empty_base")
def test_names_that_packages_share_are_read_while_their_layers_are_made(
    store: Store, tmp_path: Path, settings: Settings, read: list[str]
) -> None:
    rollout = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
    sources = {"verl/__init__.py": b"", rollout: b"from vllm import LLM, Gone"}
    user = locked(store, tmp_path, "verl", sources)
    provider = locked(store, tmp_path, "vllm", {"vllm/__init__.py": b"class LLM: pass"})
    assemble(lock_of(user, provider), Context(store, settings, Quiet()))
    assert read.count(rollout) == read.count("vllm/__init__.py") == 1
    scans = [scan.scan_wheel(store, each, "3.11") for each in (user, provider)]
    assert [each.name for each in scans[0].required_names] == ["vllm.Gone", "vllm.LLM"]
    assert scans[1].exports["vllm"].names == {"LLM"}
