"""An image as a squashfs file: its files, its entry point, and equal bytes each time."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
from pathlib import Path

import pytest

from imagegen.core.store import Store
from imagegen.export import read_tree
from imagegen.image.layers import Image, Layer
from imagegen.oci.documents import read_manifest
from tests.support.small_cell import Machine, Site

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def machine(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return site.machine(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def squashfs(machine: Machine) -> Path:
    """The directory of a written squashfs, small.sqsh, and of its files, in root."""
    directory = machine.root / "squashfs"
    directory.mkdir()
    file = directory / "small.sqsh"
    figures = json.loads(machine.call("export", "small", "--no-audit", "--json", "--squashfs", str(file)).stdout)
    assert (figures["image"], figures["size"]) == (machine.site.reference, file.stat().st_size)
    unpack = ["unsquashfs", "-q", "-n", "-d", directory / "root", file]
    subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
    return directory


def test_a_squashfs_holds_all_files_of_the_image(squashfs: Path, machine: Machine) -> None:
    root = squashfs / "root"
    store = Store(machine.root / "cache/imagegen/store")
    manifest = store.read(machine.site.reference)
    layers = [
        Layer(layer.media_type, layer.digest, layer.size, "", layer.digest, "")
        for layer in read_manifest(manifest, machine.site.reference).layers
    ]
    entries = read_tree(Image(machine.site.reference, manifest, b"", tuple(layers)), store).entries
    added = {"etc/rc", "etc/fstab", "etc/environment"}
    for entry in entries:
        path, status = root / entry.path, (root / entry.path).lstat()
        if entry.path in added:
            continue
        assert (status.st_uid, status.st_gid, int(status.st_mtime)) == (entry.uid, entry.gid, entry.mtime)
        if entry.kind == "symlink":
            assert str(path.readlink()) == entry.target
            continue
        assert stat.S_IMODE(status.st_mode) == entry.mode
        if entry.kind == "file":
            assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256
    names = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert names - added == {entry.path for entry in entries} - added


def test_a_squashfs_runs_the_image_s_entry_point(squashfs: Path) -> None:
    """Debian has no enroot, whose rule is that /etc/rc gets the command, with the variables of /etc/environment."""
    root = squashfs / "root"
    environment = dict(line.split("=", 1) for line in (root / "etc/environment").read_text().splitlines())
    command = ["chroot", str(root), "/bin/sh", "/etc/rc", "python", "-c", "import light0.m3; print(light0.m3.X)"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "3"
    assert (root / "usr/bin/perl").samefile(next((root / "usr/bin").glob("perl5.*")))


def test_a_squashfs_is_the_same_each_time(machine: Machine, squashfs: Path) -> None:
    again = machine.root / "again.sqsh"
    machine.call("export", "small", "--no-audit", "--squashfs", str(again))
    assert again.read_bytes() == (squashfs / "small.sqsh").read_bytes()
