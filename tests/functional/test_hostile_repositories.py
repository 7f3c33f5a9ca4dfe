"""Repositories of other people: nothing that they name is run, and one of another user is not read."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagegen import lock
from imagegen.app.publisher import Publisher, PublishOptions
from imagegen.cli.app import App
from imagegen.core import git
from imagegen.core.errors import FetchError
from imagegen.core.git import command
from imagegen.core.git.log import commit_of, commits, file_at, shallow
from imagegen.core.git.worktree import ForeignRepositoryError, find
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.engine.connection import run_buildx
from imagegen.lock.model import LOCAL, LockedDeb
from imagegen.trust import source_commit
from tests.support.environment import environment
from tests.support.hostile_repository import TRAPS, Trap, fetch_lazily, give_away, look_bare, plain_git
from tests.support.project import BASE, Project

COMPILED = """\
components:
  my-kernels: {description: Ours., imports: [kernels], compiled: true}
images:
  demo:
    description: Small.
    purpose: Tests.
    base: debian12
    components: {demo: {because: Tests.}, my-kernels: {because: Tests.}}
"""
RECIPE = """\
recipes:
  my-kernels: {releases: {"1.0": {path: kernels}}, modules: [kernels_cuda], source: Tests.}
"""


def compiling(root: Path) -> Project:
    """A project whose image has a component that is compiled from the project's directory `kernels`."""
    compiler, headers = (
        LockedDeb(name, "1", "amd64", 1, "a" * 64, "debian", f"pool/{name}.deb") for name in ("g++", "python3.11-dev")
    )
    project = Project(root, base=replace(BASE, debs=(compiler, *BASE.debs, headers)))
    demo = project.root / "matrices/demo.yaml"
    demo.write_text(demo.read_text().split("images:")[0] + COMPILED.removeprefix("components:\n"))
    (project.root / "wheels").mkdir()
    (project.root / "wheels/kernels.yaml").write_text(RECIPE)
    project.env["PIP_INDEX_URL"] = (project.root / "index").as_uri()
    return project


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a recipe's directory that looks like a bare repository, whose configuration names programs",
    "packed as plain files: nothing that it names is run",
)
def test_lock_runs_nothing_of_a_directory_that_looks_like_a_repository(tmp_path: Path) -> None:
    project, marker = compiling(tmp_path / "project"), tmp_path / "ran"
    kernels = project.root / "kernels"
    fetch_lazily(kernels, marker)
    look_bare(kernels)
    plain_git(kernels, "ls-files", "--others", "--exclude-standard", fails=True)
    marker.unlink()  # so it would have been run
    done = project.run("lock", "demo")
    assert done.returncode == 0, done.stderr
    assert [each.source.index for each in lock.read(project.lock).builds] == [LOCAL]
    assert not marker.exists()


SIGNED = """\
tree {tree}
author t <t@localhost> 1700000000 +0000
committer t <t@localhost> 1700000000 +0000
gpgsig -----BEGIN PGP SIGNATURE-----
 x
 -----END PGP SIGNATURE-----

signed
"""


def set_trap(trap: Trap, folder: Path, marker: Path) -> None:
    """Make `folder` a repository with a signed commit and a changed file, and set the trap."""
    program, hooks, included = (folder.parent / name for name in ("program", "hooks", "included"))
    hooks.mkdir()
    for path in (program, hooks / "post-index-change"):
        path.write_text(f"#!/bin/sh\ntouch '{marker}'\nexit 1\n")
        path.chmod(0o755)
    plain_git(folder.parent, "config", "--file", str(included), "core.fsmonitor", str(program))
    folder.mkdir()
    (folder / "a").write_text("one\n")
    (folder / ".gitattributes").write_text("a filter=x diff=x merge=x\n")
    plain_git(folder, "init", "-q", "-b", "main")
    plain_git(folder, "add", ".")
    commit = plain_git(
        folder, "hash-object", "-t", "commit", "-w", "--stdin",
        read=SIGNED.format(tree=plain_git(folder, "write-tree")),
    )  # fmt: skip
    plain_git(folder, "update-ref", "refs/heads/main", commit)
    (folder / "a").write_text("two\n")  # as long as before: git has to read it
    os.utime(folder / ".gitattributes", (0, 0))  # differs from the index, so that git writes a new one
    words = {"RUN": f"touch '{marker}'; false", "PROGRAM": program, "HOOKS": hooks, "INCLUDED": included}
    for name, value in trap.settings.items():
        plain_git(folder, "config", name, re.sub("|".join(words), lambda found: str(words[found[0]]), value))


def read_all(folder: Path, store: Store) -> None:
    """Read a repository in every way in which imagegen does."""
    env = {**os.environ, "HOME": str(store.root)}
    commit = commit_of(folder, "HEAD", env)
    assert commit and commits(folder, "a", 3, env)
    assert file_at(folder, commit, "a", env) == "one\n"
    assert not shallow(folder, env)
    found = source_commit.find_source(folder, env)
    assert found and found.dirty
    assert git.pack(folder, "x-1", store)


@pytest.mark.parametrize("name", TRAPS)
def test_no_setting_of_a_repository_runs_a_program(name: str, tmp_path: Path) -> None:
    trap, folder, marker = TRAPS[name], tmp_path / "folder", tmp_path / "ran"
    set_trap(trap, folder, marker)
    plain_git(folder, *trap.springs, fails=True, read=trap.read)
    assert marker.exists(), "plain git does not run it: the test would show nothing"
    marker.unlink()
    (folder / "a").write_text("two\n")
    os.utime(folder / ".gitattributes", (1, 1))
    read_all(folder, Store(tmp_path / "store"))
    assert not marker.exists()


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_fetched_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    """Also by a git that does not know GIT_NO_LAZY_FETCH."""
    folder, marker = tmp_path / "folder", tmp_path / "ran"
    fetch_lazily(folder, marker)
    plain_git(folder, "status", fails=True)
    marker.unlink()  # so it would have been run
    if not known:
        hardened = command.environment

        def without(*arguments: object) -> dict[str, str]:
            env = hardened(*arguments)  # type: ignore[arg-type]
            return {name: value for name, value in env.items() if name != "GIT_NO_LAZY_FETCH"}

        monkeypatch.setattr(command, "environment", without)
    for read in (
        lambda: git.pack(folder, "x-1", Store(tmp_path / "store")),
        lambda: source_commit.find_source(folder, os.environ),
        lambda: file_at(folder, "HEAD", "sub/.gitignore", os.environ),
    ):
        with suppress(FetchError):
            read()
    assert not marker.exists()


def repository(folder: Path) -> Path:
    """A repository with one commit of a file."""
    folder.mkdir(parents=True)
    (folder / "a").write_text("one\n")
    plain_git(folder, "init", "-q")
    plain_git(folder, "add", ".")
    plain_git(folder, "commit", "-qm", "one")
    return folder


def estrange(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make a directory another user's: by its owner as root, else by who asks; the owner's number."""
    if give_away(path):
        return path.stat().st_uid
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    return owner


@pytest.mark.parametrize("whose", [".", ".git"])
def test_a_repository_of_another_user_is_not_read(whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = repository(tmp_path / "top")
    project = top / "project"
    project.mkdir()
    (project / "b").touch()
    env = environment(tmp_path)
    assert source_commit.find_source(project, env)
    owner = estrange(top / whose, monkeypatch)
    for read in (
        lambda: source_commit.find_source(project, env),
        lambda: commit_of(project, "HEAD", env),
        lambda: git.pack(project, "x-1", Store(tmp_path / "store")),
    ):
        with pytest.raises(ForeignRepositoryError) as caught:
            read()
        assert caught.value.owner == owner
        assert caught.value.fix
    (tmp_path / ".gitconfig").write_text(f"[safe]\n\tdirectory = {top}\n")
    assert source_commit.find_source(project, env), "as the error advises"
    (tmp_path / ".gitconfig").write_text(f"[safe]\n\tdirectory = {top}\n\tdirectory =\n\tdirectory = /x\n")
    with pytest.raises(ForeignRepositoryError):
        source_commit.find_source(project, env)


@example(b"\0", b"gitdir: ")
@example(b"loop", b"gitdir: ")
@given(st.binary(max_size=40), st.sampled_from([b"", b"gitdir: "]))
def test_a_file_in_place_of_a_repository(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, start: bytes
) -> None:
    top = tmp_path_factory.mktemp("top")
    (top / ".git").write_bytes(start + content)
    (top / "loop").symlink_to("loop")
    env = environment(top)
    assert find(top, env)
    assert source_commit.find_source(top, env) is None
    with pytest.raises(FetchError):
        git.pack(top, "x-1", Store(top / "store"))


def test_publishing_goes_on_without_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    top = repository(tmp_path / "top")
    app = App(environment(tmp_path), top)
    assert Publisher(app, "127.0.0.1:1/x", PublishOptions()).source
    estrange(top, monkeypatch)
    assert Publisher(app, "127.0.0.1:1/x", PublishOptions()).source is None
    assert str(top) in capsys.readouterr().err


def test_who_ran_sudo_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = repository(tmp_path / "top")
    owner = estrange(top, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for path in (top, *top.rglob("*")):
        assert path.lstat().st_uid == owner
    assert find(top, {**environment(tmp_path), "SUDO_UID": str(owner)})
    with pytest.raises(ForeignRepositoryError):
        find(top, {**environment(tmp_path), "SUDO_UID": str(owner + 1)})


def test_a_worktree_and_a_submodule_have_their_repository_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = repository(tmp_path / "main")
    plain_git(main, "worktree", "add", "-q", str(tmp_path / "second"))
    (tmp_path / "third").mkdir()
    (tmp_path / "third/.git").symlink_to(main / ".git")
    for name in ("second", "third"):
        found = source_commit.find_source(tmp_path / name, environment(tmp_path))
        assert found and found.commit == plain_git(main, "rev-parse", "HEAD")
    owner = estrange(main / ".git", monkeypatch)
    for name in ("second", "third"):
        with pytest.raises(ForeignRepositoryError) as caught:
            find(tmp_path / name, environment(tmp_path))
        assert caught.value.owner == owner


@pytest.mark.parametrize(("version", "fits"), [("2.31.9", False), ("2.32.0", True), ("2.53.0.rc1", True)])
def test_a_git_that_can_not_be_hardened_is_refused(version: str, fits: bool, tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/git"
    program.write_text(f"#!/bin/sh\n[ $1 = version ] && echo git version {version} || echo {'a' * 40}\n")
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    if fits:
        assert commit_of(top, "HEAD", env) == "a" * 40
    else:
        with pytest.raises(FetchError):
            commit_of(top, "HEAD", env)


def test_buildx_looks_for_no_repository(tmp_path: Path) -> None:
    """It would have the user's git run, with whatever a directory above configures."""
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\n[ "$2" = version ] && echo v0.30.0\nenv > "{tmp_path}/env"\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BUILDX_GIT_INFO": "true", "BUILDX_GIT_LABELS": "1"}
    run_buildx(env, ["ls"], tmp_path, Quiet())
    lines = (tmp_path / "env").read_text().splitlines()
    assert [line for line in lines if "GIT" in line] == ["BUILDX_GIT_INFO=false"]
