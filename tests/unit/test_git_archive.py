"""Sources from git: real git on loopback (tests/support/git_server.py), honest repositories and others."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.git import tree as trees
from imagegen.core.git.tree import TreeEntry
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from tests.support.errors import raises
from tests.support.git_server import LINK, PROGRAM, SUBMODULE, Bare, GitServer
from tests.support.http_server import Server, status

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"
FILES = {
    "pyproject.toml": b"[project]\n",
    "pkg/__init__.py": b"X = 1\n",
    "pkg/é.txt": b"",
    "run": (PROGRAM, b"#!/bin/sh\n"),
}


@dataclass
class Workspace:
    root: Path
    bare: Bare
    server: GitServer
    store: Store
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"{self.server.url}/x.git"

    def archive(self, tree: str, commit: str | None = None, url: str | None = None) -> git.PackedTree:
        source = git.TreeSource(url or self.url, commit or self.bare.commit(tree), tree)
        return git.archive(source, "x-1", self.store, Settings.from_environment(self.env), Quiet())

    def members(self, archive: git.PackedTree) -> list[tarfile.TarInfo]:
        return list(tarfile.open(fileobj=io.BytesIO(self.store.read(archive.digest))))


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    bare = Bare(tmp_path / "x.git")
    server = GitServer(tmp_path)
    env = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    yield Workspace(tmp_path, bare, server, Store(tmp_path / "store"), env)
    server.close()


def test_a_tree_becomes_an_archive_with_nothing_of_git(workspace: Workspace) -> None:
    tree = workspace.bare.tree({**FILES, "link": (LINK, b"pkg/__init__.py"), "sub": (SUBMODULE, b"1" * 40), "lfs": LFS})
    archive = workspace.archive(tree)
    found = {member.name: (member.type, member.mode, member.linkname) for member in workspace.members(archive)}
    assert found == {
        "x-1/lfs": (tarfile.REGTYPE, 0o644, ""),
        "x-1/link": (tarfile.SYMTYPE, 0o777, "pkg/__init__.py"),
        "x-1/pkg/__init__.py": (tarfile.REGTYPE, 0o644, ""),
        "x-1/pkg/é.txt": (tarfile.REGTYPE, 0o644, ""),
        "x-1/pyproject.toml": (tarfile.REGTYPE, 0o644, ""),
        "x-1/run": (tarfile.REGTYPE, 0o755, ""),
        "x-1/sub": (tarfile.DIRTYPE, 0o755, ""),
    }
    assert list(found) == sorted(found)
    assert {(member.mtime, member.uid, member.uname) for member in workspace.members(archive)} == {(315532800, 0, "")}
    assert (archive.submodules, archive.pointers) == (("sub",), ("lfs",))
    assert not list((workspace.store.root / "tmp").iterdir())


def test_equal_trees_give_equal_bytes(workspace: Workspace) -> None:
    """Whatever the commit says, and whatever .gitattributes asks of `git archive`."""
    tree = workspace.bare.tree({**FILES, ".gitattributes": b"run export-ignore\npyproject.toml export-subst\n"})
    one = workspace.archive(tree, workspace.bare.commit(tree, message="one"))
    two = workspace.archive(tree, workspace.bare.commit(tree, message="two"))
    assert one.digest == two.digest
    assert "x-1/run" in {member.name for member in workspace.members(one)}
    assert workspace.archive(workspace.bare.tree({**FILES, "more": b""})).digest != one.digest


def test_what_was_fetched_once_needs_no_server(workspace: Workspace) -> None:
    tree = workspace.bare.tree(FILES)
    commit = workspace.bare.commit(tree)
    archive = workspace.archive(tree, commit)
    requested = len(workspace.server.seen)
    assert workspace.archive(tree, commit) == archive
    assert len(workspace.server.seen) == requested
    workspace.store.path(archive.digest).unlink()
    assert workspace.archive(tree, commit) == archive
    assert len(workspace.server.seen) > requested


def test_a_commit_that_no_branch_holds_is_fetched(workspace: Workspace) -> None:
    tree = workspace.bare.tree(FILES)
    old = workspace.bare.commit(tree)
    workspace.bare.commit(workspace.bare.tree({"other": b""}))
    assert workspace.archive(tree, old)


def test_nothing_of_the_users_git_takes_part(workspace: Workspace) -> None:
    """But where copies of repositories are: tests/unit/test_git_places.py."""
    home = workspace.root / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[http]\n\tproxy = http://127.0.0.1:1\n[fetch]\n\tunpackLimit = nonsense\n")
    workspace.env |= {"HOME": str(home), "GIT_DIR": "/nonexistent", "GIT_SSH_COMMAND": "false"}
    assert workspace.archive(workspace.bare.tree(FILES))


@pytest.mark.fault(
    "Network", "a git server has another tree, no such commit, no such repository", "refused: says which"
)
def test_what_is_not_there(workspace: Workspace) -> None:
    tree = workspace.bare.tree(FILES)
    commit = workspace.bare.commit(tree)
    with raises("fetch-git-tree-mismatch") as caught:
        workspace.archive("2" * 40, commit)
    assert tree in str(caught.value)
    with raises("fetch-git-no-commit"):
        workspace.archive(tree, "1" * 40)
    with raises("fetch-no-repository"):
        workspace.archive(tree, commit, f"{workspace.server.url}/y.git")
    with raises("fetch-unreachable") as caught:
        workspace.archive(tree, commit, "http://127.0.0.1:1/x.git")
    assert "IMAGEGEN_GIT_127_0_0_1" in str(caught.value)
    assert not list((workspace.store.root / "tmp").iterdir())


@pytest.mark.fault("Network", "a git server answers nonsense, or redirects in circles", "refused in a sentence")
@pytest.mark.parametrize("code", [200, 302, 401, 500])
def test_a_server_that_is_none(code: int, workspace: Workspace) -> None:
    server = Server()
    try:
        server.behaviours = [status(code, Location="/x.git/info/refs")]
        with pytest.raises(FetchError):
            workspace.archive("2" * 40, "1" * 40, f"http://{server.host}/x.git")
    finally:
        server.close()


def test_another_protocol_is_not_spoken(workspace: Workspace) -> None:
    """Plain http leaves this machine nowhere, be it by a redirect."""
    server = Server()
    try:
        server.behaviours = [status(302, Location="file:///etc/passwd")]
        with pytest.raises(FetchError):
            workspace.archive("2" * 40, "1" * 40, f"http://{server.host}/x.git")
        workspace.env["http_proxy"] = f"http://{server.host}"
        server.requests.clear()
        server.behaviours = [status(404)]
        with pytest.raises(FetchError) as caught:
            workspace.archive("2" * 40, "1" * 40, "http://git.example.com/x.git")
        assert "transport 'http' not allowed" in str(caught.value)
    finally:
        server.close()


def test_credentials_are_for_their_host_and_shown_nowhere(workspace: Workspace) -> None:
    server = Server()
    try:
        netrc = workspace.root / "netrc"
        netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
        netrc.chmod(0o600)
        workspace.env["NETRC"] = str(netrc)
        server.behaviours = [status(403)]
        with pytest.raises(FetchError) as caught:
            workspace.archive("2" * 40, "1" * 40, f"http://{server.host}/x.git")
        assert {headers.get("Authorization") for _, headers in server.requests} == {"Basic bWU6czNjcmV0"}
        assert "s3cret" not in str(caught.value)
        assert "bWU6czNjcmV0" not in str(caught.value)
    finally:
        server.close()


def test_credentials_do_not_follow_a_redirect(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    headers: list[str | None] = []
    answer = workspace.server.answer

    def listening(handler: BaseHTTPRequestHandler) -> None:
        headers.append(handler.headers.get("Authorization"))
        answer(handler)

    monkeypatch.setattr(workspace.server, "answer", listening)
    server = Server()
    try:
        server.behaviours = [status(302, Location=f"{workspace.url}/info/refs?service=git-upload-pack")]
        name, port = server.host.split(":")
        workspace.env["IMAGEGEN_GIT_GIT_EXAMPLE_COM"] = f"http://me:s3cret@{name}:{port}"
        with raises("fetch-redirect-refused") as caught:
            workspace.archive(workspace.bare.tree(FILES), url="https://git.example.com/x.git")
        assert "write the address that it leads to" in str(caught.value)
        assert not headers
        assert "Basic bWU6czNjcmV0" in {headers.get("Authorization") for _, headers in server.requests}
    finally:
        server.close()


def hostile(bare: Bare) -> dict[str, str]:
    """Trees that no checkout should have -> what is said of them."""
    blob = bare.blob(b"x")
    inner = bare.tree({"f": b"x"})
    return {
        bare.raw_tree([("40000", b"..", inner)]): "leaves the tree",
        bare.raw_tree([("40000", b".", inner)]): "leaves the tree",
        bare.raw_tree([("40000", b".GIT", inner)]): "leaves the tree",
        bare.raw_tree([("100644", b"a/../../b", blob)]): "leaves the tree",
        bare.raw_tree([("100644", b"/etc/passwd", blob)]): "leaves the tree",
        bare.raw_tree([("100644", b"a\nb", blob)]): "control characters",
        bare.raw_tree([("100644", b"\xff", blob)]): "not UTF-8",
        bare.raw_tree([("100644", b"a" * 300, blob)]): "too long",
        bare.raw_tree([("100644", b"a", blob), ("100644", b"a", bare.blob(b"y"))]): "one path twice",
        bare.raw_tree([("120000", b"a", blob), ("40000", b"a", inner)]): "which is no folder",
        bare.tree({"a/l": (LINK, b"../../x")}): "a link out of the tree",
        bare.tree({"l": (LINK, b"/etc/passwd")}): "a link out of the tree",
        bare.tree({"l": (LINK, b".git/config")}): "a link out of the tree",
        bare.tree({"l": (LINK, b"a\0b")}): "a link out of the tree",
        bare.tree({"l": (LINK, b"\xff")}): "a link out of the tree",
        bare.tree({"l": (LINK, b"x" * 2000)}): "a link out of the tree",
    }


@pytest.mark.fault(
    "Wheels",
    "a commit's tree holds `..`, `.git`, links out of it, one path twice",
    "refused: names the commit and path",
)
def test_trees_that_are_no_checkout(workspace: Workspace) -> None:
    for tree, why in hostile(workspace.bare).items():
        commit = workspace.bare.commit(tree, branch=None)
        workspace.bare.git("update-ref", "refs/heads/main", commit)
        with pytest.raises(FetchError, match=why):
            workspace.archive(tree, commit)
    assert not list((workspace.store.root / "tmp").iterdir())


@pytest.mark.fault("Wheels", "a tree of a few bytes names millions of files", "refused before memory or disk is full")
def test_a_tree_that_is_a_bomb(workspace: Workspace) -> None:
    inside = workspace.bare.tree({"f": b"x"})
    for _ in range(12):
        inside = workspace.bare.raw_tree([("40000", b"%d" % number, inside) for number in range(10)])
    with raises("fetch-git-tree-invalid"):
        workspace.archive(inside)


def test_paths_that_differ_in_case_alone_are_two(workspace: Workspace) -> None:
    archive = workspace.archive(workspace.bare.tree({"README": b"1", "readme": b"2"}))
    assert [member.name for member in workspace.members(archive)] == ["x-1/README", "x-1/readme"]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=12), max_size=6), st.binary(max_size=30))
def test_no_path_and_no_target_leads_out(names: list[str], target: bytes) -> None:
    """For any rows: accepted paths stay below a folder, as a file system sees it."""
    rows = [f"100644 blob {'a' * 40} 1\t".encode() + name.encode() for name in names]
    try:
        entries = trees.checked(trees.listed(rows, "here"), "here")
    except FetchError:
        return
    for entry in entries:
        assert os.path.normpath(f"/x/{entry.path}").startswith("/x/")
    link = TreeEntry("120000", "a" * 40, 1, "folder/link")
    try:
        trees.check_target(link, target, "here")
    except FetchError:
        return
    assert os.path.normpath(os.path.join("/x/folder", target.decode())).startswith("/x")
