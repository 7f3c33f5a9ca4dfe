"""Images as squashfs files, written by mksquashfs and read by unsquashfs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
import subprocess
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.image_format import EPOCH
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.export import Entry, read_tree, squashfs
from imagegen.image.layers import Image
from tests.support.command_line import Run
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.image_layers import files_layer, image, layer, member

FILES = {
    "etc/passwd": b"root",
    "a/large": os.urandom(3 << 20),
    "a/small": b"small",
    "a/again": b"small",
    "b/empty": b"",
}
_LISTED = re.compile(r"\S+ (\d+)/(\d+) +\d+ \S+ \S+ /?(.*?)(?: -> .*)?", re.DOTALL)
ENROOT = {"etc/environment", "etc/fstab", "etc/rc"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def built(store: Store) -> Image:
    """An image with links, modes, owners, whiteouts, a name that is not UTF-8 and one of 200 characters."""
    odd = [
        member("a/link", tarfile.SYMTYPE, "small"),
        member("a/tool", mode=0o4755),
        member("a/hard", tarfile.LNKTYPE, "a/tool"),
        member("a/" + "x" * 200, mode=0o600),
        member(os.fsdecode(b"a/\xff"), mode=0o640),
        member("c", tarfile.DIRTYPE, mode=0o1777),
    ]
    removed = files_layer(store, {"a/gone": None, "etc/passwd": b"replaced"})
    return image(files_layer(store, {**FILES, "a/gone": b"", "etc/fstab": b"/dev/sda1"}), layer(store, *odd), removed)


def written(built: Image, file: Path, store: Store) -> squashfs.SquashfsFile:
    return squashfs.write(built, file, store, os.environ, Quiet())


def unpacked(file: Path) -> dict[str, Entry]:
    """The entries of a squashfs: owners as unsquashfs lists them, all else from the unpacked files."""
    root = file.with_suffix(".root")
    subprocess.run(["unsquashfs", "-q", "-n", "-d", root, file], check=True, capture_output=True)
    listed = subprocess.run(["unsquashfs", "-lln", "-d", "", file], check=True, capture_output=True).stdout
    found = {}
    for line in os.fsdecode(listed).splitlines():
        uid, gid, path = _LISTED.fullmatch(line).groups()  # type: ignore[union-attr]
        status = (root / path).lstat()
        kind = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}[stat.S_IFMT(status.st_mode)]
        entry = Entry(path, kind, stat.S_IMODE(status.st_mode), int(uid), int(gid), int(status.st_mtime))
        if kind == "file":
            content = (root / entry.path).read_bytes()
            entry = replace(entry, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        elif kind == "symlink":
            entry = replace(entry, mode=0o777, target=str((root / entry.path).readlink()))
        found[entry.path] = entry
    return found


def test_the_file_holds_the_image_s_tree(store: Store, built: Image, tmp_path: Path) -> None:
    figures = written(built, tmp_path / "image.sqsh", store)
    found = unpacked(tmp_path / "image.sqsh")
    expected = {
        entry.path: replace(entry, mode=0o777) if entry.kind == "symlink" else entry
        for entry in read_tree(built, store).entries
        if entry.path not in ENROOT
    }
    assert found.pop("") == Entry("", "directory", 0o755, 0, 0, EPOCH)
    assert {path: entry for path, entry in found.items() if path not in ENROOT} == expected
    assert found.keys() - expected.keys() == ENROOT
    assert (figures.size, figures.image) == ((tmp_path / "image.sqsh").stat().st_size, built.digest)
    root = tmp_path / "image.root"
    assert (root / "a/hard").samefile(root / "a/tool")
    assert not (root / "a/again").samefile(root / "a/small")


def test_two_exports_have_the_same_bytes(
    store: Store, built: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(built, tmp_path / "one.sqsh", store)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.sleep(1.1)  # a clock in the file would show
    written(built, tmp_path / "two.sqsh", store)
    assert (tmp_path / "one.sqsh").read_bytes() == (tmp_path / "two.sqsh").read_bytes()


def test_the_root_s_time_is_set_wherever_its_inode_lies(store: Store, tmp_path: Path) -> None:
    """Inodes are in blocks of 8 KiB: the root's is the last of the first block, in two blocks, or in the second."""
    files = files_layer(store, {f"a/{number}": b"" for number in range(246)})
    for length in range(124, 138):  # of the target of a link, whose inode lies before the root's
        file = tmp_path / f"{length}.sqsh"
        written(image(files, layer(store, member("z", tarfile.SYMTYPE, "x" * length))), file, store)
        command = ["unsquashfs", "-UTC", "-lln", "-d", "", file]
        root, *others = subprocess.run(command, check=True, capture_output=True).stdout.splitlines()
        assert root.split()[3:5] == [b"1980-01-01", b"00:00"]
        assert len(others) == 252


def test_enroot_starts_the_entry_point_with_the_image_s_environment(store: Store, built: Image, tmp_path: Path) -> None:
    config = {
        "Env": ["PATH=/bin:/usr/bin", 'GREETING=it\'s a = "b" $HOME'],
        "Entrypoint": ["/usr/bin/env", "A B=1"],
        "Cmd": ["printenv", "A B"],
        "WorkingDir": str(tmp_path),
    }
    written(replace(built, config=json.dumps({"config": config}).encode()), tmp_path / "image.sqsh", store)
    unpacked(tmp_path / "image.sqsh")
    root = tmp_path / "image.root"
    assert (root / "etc/environment").read_text().splitlines() == config["Env"]
    assert (root / "etc/fstab").read_bytes() == b""
    rc = root / "etc/rc"
    command = ["sh", rc, "sh", "-c", 'echo "$@"; pwd', "x", "one two"]
    assert subprocess.run(["sh", rc], check=True, capture_output=True, text=True).stdout == "1\n"
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"one two\n{tmp_path}\n"


@pytest.mark.parametrize("variable", ["A=${HOME}", "A=one\ntwo", "ENROOT_DATA=1", "a.b=1", 'A="quoted"'])
def test_a_variable_that_enroot_would_change_is_refused(
    store: Store, built: Image, tmp_path: Path, variable: str
) -> None:
    config = json.dumps({"config": {"Env": [variable]}}).encode()
    with raises("store-unsupported-variable"):
        written(replace(built, config=config), tmp_path / "image.sqsh", store)
    assert not (tmp_path / "image.sqsh").exists()


def test_nothing_stays_of_a_failed_export(store: Store, built: Image, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    store.path(built.layers[1].digest).write_bytes(b"damaged")
    with raises("store-damaged"):
        written(built, out / "image.sqsh", store)
    assert not list(out.iterdir())


def failing(store: Store, built: Image, root: Path, stderr: str) -> None:
    """Write with a mksquashfs that fails."""
    program = root / "bin" / "mksquashfs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {shlex.quote(stderr)} >&2\nexit 1\n")
    program.chmod(0o755)
    squashfs.write(built, root / "a" / "out" / "image.sqsh", store, {"PATH": str(program.parent)}, Quiet())


@pytest.mark.parametrize(
    "stderr",
    [
        "FATAL ERROR: /etc exists in the tar file as a non-directory",
        "mksquashfs: invalid option",
        'mksquashfs: Compressor "zstd" is not supported!',
    ],
)
def test_a_program_that_fails_is_quoted(
    store: Store, built: Image, tmp_path: Path, stderr: str, golden: Golden
) -> None:
    with raises("store-program-failed") as caught:
        failing(store, built, tmp_path, stderr)
    assert caught.value.why == stderr
    golden.check(caught.value.fix)
    assert not (tmp_path / "a").exists()


@pytest.mark.fault(
    "Disk", "mksquashfs finds the output's disk full", "says so and names the directory; no empty directory stays"
)
def test_a_full_disk_is_no_fault_of_the_program(store: Store, built: Image, tmp_path: Path, golden: Golden) -> None:
    with raises("store-disk-full") as caught:
        failing(store, built, tmp_path, "Write failed because No space left on device\nFATAL ERROR: Failed to write")
    golden.check(caught.value.fix)
    assert not (tmp_path / "a").exists()


def test_a_missing_program_names_its_package() -> None:
    with raises("store-program-missing") as caught:
        squashfs.require_program({"PATH": "/nowhere"}, system=())
    assert "squashfs-tools" in str(caught.value.fix)


def test_the_command_writes_to_a_new_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "image.sqsh"
    assert run("export", "cpu-grpo").code == 64
    file.touch()
    assert run("export", "cpu-grpo", "--squashfs", str(file)).code == 69
