"""Disks that are full, read-only, or owned by another user: real ones, as small file systems in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import StoreError
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store, disk, images
from imagegen.core.store.cache import Cache
from imagegen.image import base
from tests.support.machines import Debian
from tests.support.small_cell import Machine, Site, forget
from tests.support.tiny_image import tiny_image

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
]


@contextmanager
def volume(place: Path, size: str) -> Iterator[Path]:
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


@contextmanager
def machine_on(site: Site, root: Path, size: str) -> Iterator[Machine]:
    """A machine whose store is warm and lies on a file system of this size."""
    machine = Machine(root, site)
    with volume(machine.store, size):
        subprocess.run(["cp", "-a", f"{site.warm}/.", machine.store], check=True)
        yield machine


def refused(machine: Machine, output: str) -> str:
    process = machine.start(output)
    out, err = process.communicate()
    assert (process.returncode, out) == (69, ""), err
    assert "Traceback" not in err
    assert "fix: " in err
    return err


@pytest.mark.fault(
    "Disk",
    "a build whose store has too little disk space",
    "refused before anything is fetched: says how much it takes, where, and how much is free",
)
def test_too_little_disk_space_is_reported_first(site: Site, tmp_path: Path) -> None:
    with machine_on(site, tmp_path / "machine", "330m") as machine:
        used = sum(path.stat().st_blocks * 512 for path in machine.store.rglob("*") if not path.is_symlink())
        remount(machine.store, f"size={used + 12_000_000}")
        before = set(machine.store.rglob("blobs/sha256/*"))
        err = refused(machine, "image")
        assert f"{machine.store}: the disk of the store is full" in err
        assert "this takes about 22." in err
        assert " MB are free there" in err
        assert set(machine.store.rglob("blobs/sha256/*")) == before
        assert not list((machine.store / "tmp").iterdir())
        remount(machine.store, "size=500m")
        assert machine.build("image") == site.reference


@pytest.mark.fault(
    "Disk",
    "the store's disk fills while a build fetches and writes",
    "says so; unfinished files are removed, and with enough space the next build succeeds",
)
def test_a_disk_that_fills_meanwhile(site: Site, tmp_path: Path) -> None:
    with machine_on(site, tmp_path / "machine", "400m") as machine:
        process = machine.start("image")
        while "part-" not in machine.log.read_text():
            assert process.poll() is None
        filler = machine.store.parent / "store" / "filler"
        with filler.open("wb") as file:
            try:
                while process.poll() is None:
                    file.write(bytes(1 << 20))
                    file.flush()
            except OSError:
                _, err = process.communicate()
        assert process.returncode == 69, err
        assert "the disk of the store is full" in err
        assert "in all" in err
        assert not list((machine.store / "tmp").iterdir())
        filler.unlink()
        assert machine.build("second") == site.reference


def keep_blob(store: Store, source: Path) -> None:
    store.write(source.read_bytes())


def keep_record(store: Store, source: Path) -> None:
    Cache("files", dict).put(store, "sha256:" + "0" * 64, {"x": source.read_text()})


def download(store: Store, source: Path) -> None:
    client, size = Client(Settings.from_environment({"HOME": "/"})), source.stat().st_size
    client.download(source.as_uri(), store, sha256="0" * 64, size=size, meter=Quiet().meter("", 0))


@pytest.mark.parametrize("keep", [keep_blob, keep_record, download])
def test_what_does_not_fit_leaves_nothing(keep: Callable[[Store, Path], None], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x" * 8_000_000)
    with volume(tmp_path / "disk", "4m") as place:
        store = Store(place / "store")
        before = disk.free(place)
        with pytest.raises(StoreError, match="the disk of the store is full") as caught:
            keep(store, tmp_path / "file")
        assert "are free there" in str(caught.value.why)
        assert disk.free(place) >= before - 8192  # a directory for the record's kind may stay
        assert not list((store.root / "tmp").iterdir())


@pytest.mark.fault(
    "Disk",
    "the store's disk fills while mmdebstrap makes a base, or while a base is unpacked",
    "says that the disk is full, not that mmdebstrap or tar failed, and frees all space",
)
@pytest.mark.parametrize("step", ["copying packages", "mmdebstrap", "unpacking"])
def test_a_base_that_does_not_fit(step: str, debian: Debian, settings: Settings, tmp_path: Path) -> None:
    packages = sum(deb.size for deb in debian.locked.debs)
    size = {"copying packages": 1.5, "mmdebstrap": 4, "unpacking": 5.5}[step] * packages
    with volume(tmp_path / "disk", str(int(size))) as place:
        store = Store(place / "store")
        for deb in debian.locked.debs:
            shutil.copy(debian.store.path(deb.digest), store.path(deb.digest))
            Cache("deb", dict).put(store, deb.digest, {"archive": deb.archive})
        if step == "unpacking":
            key, diff_id = base.key(debian.locked), debian.layer.diff_id
            shutil.copy(debian.store.path(diff_id), store.path(diff_id))
            Cache("base", dict).put(store, key, asdict(debian.layer))
        before = disk.free(place)
        with pytest.raises(StoreError, match="the disk of the store is full"):
            base.rootfs(debian.locked, Context(store, settings, Quiet()))
        assert disk.free(place) >= before - 65536
        assert not list((store.root / "tmp").iterdir())
        assert not list((store.root / "rootfs").iterdir())


@pytest.mark.fault(
    "Disk",
    "the directory for temporary files cannot be written, and the store has no more space than a base requires",
    "the base is built: it works in the store alone",
)
@pytest.mark.usefixtures("elsewhere")
def test_a_base_built_elsewhere_takes_no_more_than_it_says_and_no_tmp(
    debian: Debian, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_order = replace(debian.locked, debs=tuple(reversed(debian.locked.debs)))  # a key of its own, the same bytes
    expected = base.needed(other_order, Store(tmp_path / "empty"))
    with volume(tmp_path / "tmp", "1m") as closed, volume(tmp_path / "disk", str(expected)) as place:
        remount(closed, "ro")
        monkeypatch.setattr(tempfile, "tempdir", str(closed))
        monkeypatch.setenv("TMPDIR", str(closed))
        store = Store(place / "store")
        for deb in debian.locked.debs:
            shutil.copy(debian.store.path(deb.digest), store.path(deb.digest))
            Cache("deb", dict).put(store, deb.digest, {"archive": deb.archive})
        assert base.build(other_order, Context(store, settings, Quiet())) == debian.layer
        base.rootfs(other_order, Context(store, settings, Quiet()))
        assert base.needed(other_order, store) == 0


@pytest.mark.fault(
    "Disk",
    "the store lies on a file system that is mounted read-only",
    "a build that must write says so and where a store can be; `list`, `store check` and `store size` still work",
)
def test_a_read_only_store(site: Site, tmp_path: Path) -> None:
    with machine_on(site, tmp_path / "machine", "400m") as machine:
        machine.build("image")
        forget(machine, "build")  # of an unchanged image nothing is written
        remount(machine.store, "ro")
        try:
            err = refused(machine, "second")
            assert "the store cannot be written" in err
            assert "Read-only file system" in err
            assert "XDG_CACHE_HOME" in err
            for command in (["list"], ["store", "check"], ["store", "size"]):
                machine.imagegen(*command)
        finally:
            remount(machine.store, "rw")


@pytest.mark.fault(
    "Disk", "the store belongs to another user", "says that it cannot be written, and how to have one's own"
)
def test_another_users_store(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents[:-1]):
        path.chmod(path.stat().st_mode | 0o055)
    store = Store(tmp_path / "store")
    digest = store.write(b"x")
    os.seteuid(65534)
    try:
        assert Store(tmp_path / "store").read(digest) == b"x"
        for write in (
            lambda: store.write(b"y"),
            lambda: Cache("layer", dict).put(store, digest, {}),
            lambda: store.lock("x").__enter__(),
            lambda: store.temporary_directory("x").__enter__(),
        ):
            with pytest.raises(StoreError, match="the store cannot be written") as caught:
                write()
            assert "Permission denied" in str(caught.value)
            assert "XDG_CACHE_HOME to a directory of yours" in str(caught.value)
    finally:
        os.seteuid(0)


@pytest.mark.fault(
    "Disk",
    "`--output oci:DIR` where DIR's disk is too small",
    "says how much it takes and how much is free there; nothing of it stays, and the image stays in the store",
)
def test_an_output_that_does_not_fit(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    digest = tiny_image(store, os.urandom(3_000_000), {"x": b"x"})
    with volume(tmp_path / "disk", "2m") as place:
        with pytest.raises(StoreError, match="the disk of the output directory is full") as caught:
            images.export(store, digest, place / "image", "x")
        assert "this takes about 3.0 MB in all" in str(caught.value)
        assert not list(place.iterdir())
        remount(place, "size=8m")
        images.export(store, digest, place / "image", "x")
