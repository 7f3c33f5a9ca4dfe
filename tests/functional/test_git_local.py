"""Directories of the user's as sources: what of them counts, with real git and without, and what a lock holds of it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.core import git
from imagegen.core.errors import FetchError
from imagegen.core.store import Store
from imagegen.oci.documents import digest_of
from tests.support.errors import raises
from tests.support.git_workspace import LFS
from tests.support.golden import Golden

TAG = "Signature: 8a477f597d28d172789f06886806bc55\n"


def fill(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def run_git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, env=env)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    fill(path, {"setup.py": "1", "csrc/a.cu": "2", "run": "#!/bin/sh\n"})
    (path / "run").chmod(0o700)
    (path / "link").symlink_to("csrc/a.cu")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def members(archive: git.PackedTree, store: Store) -> dict[str, tuple[int, str]]:
    with tarfile.open(fileobj=io.BytesIO(store.read(archive.digest))) as tar:
        return {member.name: (member.mode, member.linkname) for member in tar}


def names(folder: Path, store: Store) -> set[str]:
    return {name.removeprefix("x-1/") for name in members(git.pack(folder, "x-1", store), store)}


def test_a_directory_becomes_an_archive(folder: Path, store: Store) -> None:
    made = git.pack(folder, "x-1", store)
    found = members(made, store)
    assert found == {
        "x-1/csrc/a.cu": (0o644, ""),
        "x-1/link": (0o777, "csrc/a.cu"),
        "x-1/run": (0o755, ""),
        "x-1/setup.py": (0o644, ""),
    }
    assert list(found) == sorted(found)
    os.utime(folder / "setup.py", (0, 0))
    (folder / "setup.py").chmod(0o600)
    assert git.pack(folder, "x-1", store) == made
    (folder / "setup.py").chmod(0o700)
    assert git.pack(folder, "x-1", store) != made


def test_caches_and_version_control_do_not_count(folder: Path, store: Store) -> None:
    before = git.pack(folder, "x-1", store)
    noise = {".hg/x": "", "csrc/__pycache__/a.pyc": "", ".mypy_cache/CACHEDIR.TAG": TAG, ".mypy_cache/x": ""}
    fill(folder, noise)
    assert git.pack(folder, "x-1", store) == before
    fill(folder, {"kept/CACHEDIR.TAG": "no signature"})
    assert "kept/CACHEDIR.TAG" in names(folder, store)


def test_a_working_tree_is_what_git_sees(folder: Path, store: Store) -> None:
    before = git.pack(folder, "x-1", store)
    run_git(folder, "init", "-q")
    assert git.pack(folder, "x-1", store) == before
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "x")
    fill(folder, {".gitignore": "*.o\nbuild/\n", "a.o": "", "build/x": "", "new.py": "", "é.txt": ""})
    (folder / "csrc/a.cu").unlink()
    (folder / "link").unlink()
    assert names(folder, store) == {".gitignore", "new.py", "run", "setup.py", "é.txt"}
    (folder / "setup.py").write_text("changed")
    assert git.pack(folder / "csrc" / "..", "x-1", store).digest == git.pack(folder, "x-1", store).digest


def test_what_python_leaves_behind_counts_only_where_git_tracks_it(folder: Path, store: Store) -> None:
    """Importing or installing the sources must not change their hash."""
    left = {"csrc/__pycache__/a.pyc": "", "b.pyc": "", "x.egg-info/PKG-INFO": "", "csrc/y.egg-info/z": ""}
    before = git.pack(folder, "x-1", store)
    fill(folder, left)
    assert git.pack(folder, "x-1", store) == before
    run_git(folder, "init", "-q")
    assert git.pack(folder, "x-1", store) == before
    run_git(folder, "add", "x.egg-info", "b.pyc")
    fill(folder, {"x.egg-info/new": "", "kept.egg-info.txt": "", "egg-info/a": ""})
    assert names(folder, store) - {"csrc/a.cu", "link", "run", "setup.py"} == {
        "x.egg-info/PKG-INFO", "b.pyc", "kept.egg-info.txt", "egg-info/a"
    }  # fmt: skip


def test_a_folder_of_a_working_tree(folder: Path, store: Store) -> None:
    run_git(folder, "init", "-q")
    fill(folder, {".gitignore": "secret\nbuild\n", "csrc/secret": "", "build/x": ""})
    assert names(folder / "csrc", store) == {"a.cu"}
    with raises("fetch-no-source"):
        git.pack(folder / "build", "x-1", store)


def test_submodules_that_are_checked_out_come_along(folder: Path, store: Store, tmp_path: Path) -> None:
    other = tmp_path / "other"
    fill(other, {"o.h": "", ".gitignore": "*.o"})
    for each in (other, folder):
        run_git(each, "init", "-q")
        run_git(each, "add", ".")
        run_git(each, "commit", "-qm", "x")
    for path in ("lib/one", "lib/two"):
        run_git(folder, "submodule", "--quiet", "add", str(other), path)
    fill(folder, {"lib/one/x.o": "", "lib/one/new": ""})
    run_git(folder, "submodule", "--quiet", "deinit", "--force", "lib/two")
    made = git.pack(folder, "x-1", store)
    assert made.submodules == ("lib/two",)
    assert {name for name in members(made, store) if "lib" in name} == {
        "x-1/lib/one/.gitignore", "x-1/lib/one/new", "x-1/lib/one/o.h", "x-1/lib/two"
    }  # fmt: skip


def test_nothing_that_a_repository_says_is_run(folder: Path, store: Store, tmp_path: Path) -> None:
    run_git(folder, "init", "-q")
    (tmp_path / "hook").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "hook").chmod(0o755)
    run_git(folder, "config", "core.fsmonitor", str(tmp_path / "hook"))
    assert git.pack(folder, "x-1", store)
    assert not (tmp_path / "ran").exists()


def test_an_sdist_is_taken_as_it_is(store: Store, tmp_path: Path) -> None:
    sdist = tmp_path / "x-1.tar.gz"
    sdist.write_bytes(b"bytes")
    assert git.pack(sdist, "x-1", store) == git.PackedTree(digest_of(b"bytes"), 5)


def test_a_pointer_of_git_lfs_is_reported(folder: Path, store: Store) -> None:
    (folder / "weights").write_bytes(LFS)
    assert git.pack(folder, "x-1", store).pointers == ("weights",)


@pytest.mark.fault(
    "Wheels", "a local source is absent, empty, broken, or holds links out of it and pipes", "refused: names the path"
)
def test_what_is_no_source(folder: Path, store: Store, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.whl").touch()
    broken = tmp_path / "broken"
    fill(broken, {".git/HEAD": "nonsense", "a": ""})
    for path, why in {"none": "is not there", "empty": "holds no source", "x.whl": "is not a source"}.items():
        with pytest.raises(FetchError, match=why):
            git.pack(tmp_path / path, "x-1", store)
    with raises("fetch-git-failed"):
        git.pack(broken, "x-1", store)
    for make in (
        lambda path: path.symlink_to("../../x"),
        lambda path: path.symlink_to("/etc/passwd"),
        os.mkfifo,
        lambda path: os.close(os.open(os.fsencode(path.parent) + b"/\xff", os.O_CREAT)),
    ):
        make(folder / "odd")
        with raises("fetch-git-tree-invalid"):
            git.pack(folder, "x-1", store)
        for each in os.listdir(os.fsencode(folder)):
            if each in (b"odd", b"\xff"):
                os.unlink(os.fsencode(folder) + b"/" + each)


@pytest.mark.fault("Wheels", "a local source changes after it was locked", "refused: names the files that changed")
def test_a_directory_that_changed_since_it_was_locked(folder: Path, store: Store, golden: Golden) -> None:
    locked = git.pack(folder, "x-1", store)
    assert git.unchanged(folder, "x-1", locked.digest, store) == locked
    fill(folder, {"setup.py": "other", **{f"new{number}": "" for number in range(7)}})
    (folder / "link").unlink()
    with raises("lock-source-changed") as caught:
        git.unchanged(folder, "x-1", locked.digest, store)
    golden.check(caught.value)
    store.path(locked.digest).unlink()
    with raises("lock-source-changed"):
        git.unchanged(folder, "x-1", locked.digest, store)


def test_another_machine_takes_what_the_store_has(folder: Path, store: Store) -> None:
    locked = git.pack(folder, "x-1", store)
    away = folder.rename(folder.with_name("away"))
    assert git.unchanged(folder, "x-1", locked.digest, store).digest == locked.digest
    store.path(locked.digest).unlink()
    with raises("fetch-no-source"):
        git.unchanged(folder, "x-1", locked.digest, store)
    assert git.unchanged(away, "x-1", locked.digest, store) == locked


@settings(max_examples=10)
@given(
    st.dictionaries(
        st.text("abAB.é -", min_size=1, max_size=4).filter(lambda t: t.strip(".")), st.binary(max_size=9), min_size=1
    )
)
def test_equal_files_give_equal_bytes(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    """In whatever order they were written; and each is there as it was."""
    work_dir = tmp_path_factory.mktemp("equal")
    store, made = Store(work_dir / "store"), set()
    for number, order in enumerate((sorted(files), sorted(files, reverse=True))):
        folder = work_dir / str(number)
        folder.mkdir()
        for name in order:
            (folder / name).write_bytes(files[name])
        made.add(git.pack(folder, "x-1", store).digest)
    (digest,) = made
    with tarfile.open(fileobj=io.BytesIO(store.read(digest))) as tar:
        assert {each.name: tar.extractfile(each).read() for each in tar} == {  # type: ignore[union-attr]
            f"x-1/{name}": data for name, data in files.items()
        }
