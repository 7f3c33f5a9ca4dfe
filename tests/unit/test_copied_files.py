"""Files of the project in an image: in the lock, compared before a build, in the layer and in the Dockerfile."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from imagegen.core.errors import LockError
from imagegen.core.store import Store
from imagegen.image import dockerfile
from imagegen.image.layers.layer import files_layer
from imagegen.image.layers.plan import FILES, plan
from imagegen.lock import contradictions, dumps
from imagegen.lock.file import loads
from imagegen.lock.make import copies
from imagegen.lock.model import CopiedFile, Lock, LockedCopy
from imagegen.spec.model import Cell
from imagegen.trust.licences import KnownLicences
from imagegen.trust.sbom import sbom
from tests.support.errors import raises
from tests.support.matrix_samples import SMALL, complaint, load
from tests.support.tiny_lock import LOCK

ENTRIES = """    gpus: [sm_90]
    files:
      /etc/own.conf: {source: own.conf, because: b}
      /srv/data: {source: data, because: b}"""
TEXT = SMALL.replace("    gpus: [sm_90]", ENTRIES)


class Project:
    """A project with the files that TEXT names, and its cell."""

    def __init__(self, root: Path, text: str = TEXT) -> None:
        self.root = root
        (root / "data/deep").mkdir(parents=True)
        (root / "own.conf").write_text("a")
        (root / "data/run").write_text("#!/bin/sh")
        (root / "data/run").chmod(0o700)
        (root / "data/deep/é b").write_text("")
        self.store = Store(root / "store")
        self.cell: Cell = load(root / "matrices", text).select("small")[0]

    def lock(self) -> Lock:
        return replace(LOCK, copies=copies.read(self.cell, self.store))


def test_a_lock_has_each_file_by_path_mode_and_content(tmp_path: Path) -> None:
    lock = Project(tmp_path).lock()
    files = [(file.path, file.mode, file.size) for copy in lock.copies for file in copy.files]
    assert files == [
        ("/etc/own.conf", "0644", 1),
        ("/srv/data/deep/é b", "0644", 0),
        ("/srv/data/run", "0755", 9),
    ]
    assert loads(dumps(lock)) == lock
    assert [copy.is_directory for copy in lock.copies] == [False, True]


def test_the_cell_decides_what_is_copied(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert "files" in project.cell.inputs
    assert "copy" not in contradictions(project.lock(), project.cell)
    assert "copy" in contradictions(LOCK, project.cell)


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (lambda root: (root / "own.conf").write_text("b"), "/etc/own.conf"),
        (lambda root: (root / "own.conf").chmod(0o755), "/etc/own.conf"),
        (lambda root: (root / "data/run").unlink(), "/srv/data/run"),
        (lambda root: (root / "data/new").write_text("c"), "/srv/data/new"),
    ],
)
def test_an_edit_makes_the_lock_stale(edit: object, path: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    lock = project.lock()
    copies.require_unchanged(lock, project.cell, project.store, "locks/x.toml")
    assert callable(edit)
    edit(project.root)
    with raises("lock-stale") as raised:
        copies.require_unchanged(lock, project.cell, project.store, "locks/x.toml")
    assert path in (raised.value.why or "")


def test_times_and_other_bits_of_the_mode_change_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    lock = project.lock()
    os.utime(tmp_path / "own.conf", (1, 1))
    (tmp_path / "own.conf").chmod(0o600)
    assert project.lock() == lock


@pytest.mark.parametrize(
    "spoil",
    [
        lambda root: (root / "own.conf").unlink(),
        lambda root: (root / "data/link").symlink_to("run"),
        lambda root: (root / "data/folder").symlink_to("deep"),
        lambda root: [(root / "own.conf").unlink(), (root / "own.conf").symlink_to("/etc/passwd")],
        lambda root: os.mkfifo(root / "data/pipe"),
    ],
)
def test_what_cannot_be_copied_is_an_error_with_its_line(spoil: object, tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert callable(spoil)
    spoil(tmp_path)
    with raises("lock-copy-invalid") as raised:
        project.lock()
    assert str(raised.value.where).startswith(str(tmp_path / "matrices/0.yaml:"))


@pytest.mark.parametrize(
    "entry",
    [
        "/etc/own.conf/x: {source: own.conf, because: b}",
        "/srv/data/run: {source: own.conf, because: b}",
        "/opt/venv/x: {source: own.conf, because: b}",
        "/opt/imagegen/x: {source: own.conf, because: b}",
        "/empty: {source: data/deep/none, because: b}",
    ],
)
def test_targets_that_are_taken(entry: str, tmp_path: Path) -> None:
    project = Project(tmp_path, TEXT.replace("      /etc/own.conf", f"      {entry}\n      /etc/own.conf", 1))
    (tmp_path / "data/deep/none").mkdir()
    with raises("lock-copy-invalid"):
        project.lock()


@pytest.mark.parametrize("target", ["/bin/x", "/lib64/x", "/proc/x", "etc/x", "/etc/../x", "/etc//x", '"/a b"'])
def test_a_malformed_target_is_an_error_with_its_line(target: str, tmp_path: Path) -> None:
    assert complaint(tmp_path / "sound", TEXT) == ""
    assert complaint(tmp_path / "faulty", TEXT.replace("/etc/own.conf", target))


def test_the_layer_has_the_files_and_no_directory_of_lower_layers(tmp_path: Path) -> None:
    project = Project(tmp_path)
    lock = project.lock()
    part = plan(lock)[-1]
    assert (part.name, FILES in {each.name for each in plan(LOCK)}) == (FILES, False)
    layer = files_layer(project.store, part, lock)
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(project.store.read(layer.digest))
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        found = [(each.name, each.mode, each.uid, each.isdir()) for each in tar]
    assert found == [
        ("etc/own.conf", 0o644, 0, False),
        ("srv/data", 0o755, 0, True),
        ("srv/data/deep", 0o755, 0, True),
        ("srv/data/deep/é b", 0o644, 0, False),
        ("srv/data/run", 0o755, 0, False),
    ]


def test_only_the_layer_of_the_files_changes_with_them(tmp_path: Path) -> None:
    project = Project(tmp_path)
    before = project.lock()
    (tmp_path / "own.conf").write_text("b")
    after = project.lock()
    assert [a.name for a, b in zip(plan(before), plan(after), strict=True) if a.key != b.key] == [FILES]


def test_a_rendered_dockerfile_copies_the_files(tmp_path: Path) -> None:
    lines = dockerfile.render(Project(tmp_path).lock(), "tiny:test").dockerfile.splitlines()
    copied = [line for line in lines if line.startswith("COPY files")]
    assert copied == ["COPY files/etc/own.conf /etc/own.conf", "COPY files/srv/data /srv/data/"]


@pytest.mark.parametrize(
    ("path", "files"),
    [("/a", ()), ("/a", ("/b",)), ("/a", ("/a/b", "/ab")), ("/a", ("/a/../b",)), ("/a", ("/a/c", "/a/b"))],
)
def test_a_lock_copies_nothing_elsewhere(path: str, files: tuple[str, ...]) -> None:
    copied = tuple(CopiedFile(each, "0644", 1, "a" * 64) for each in files)
    with pytest.raises(LockError):
        dumps(replace(LOCK, copies=(LockedCopy(path, "s", "b", copied),)))


def test_the_sbom_has_each_file(tmp_path: Path) -> None:
    lock = Project(tmp_path).lock()
    document = json.loads(sbom(lock, f"sha256:{'a' * 64}", KnownLicences()))
    found = {each["name"]: each["hashes"][0]["content"] for each in document["components"] if each["type"] == "file"}
    assert found == {file.path: file.sha256 for copy in lock.copies for file in copy.files}
