"""Sources from git: real git on loopback (tests/support/git_server.py), honest repositories and others."""

from __future__ import annotations

import os
import tarfile
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import FetchError
from imagegen.core.git import tree as trees
from imagegen.core.git.tree import TreeEntry
from tests.support.errors import raises
from tests.support.git_server import LINK, SUBMODULE, Bare
from tests.support.git_workspace import FILES, LFS, Workspace
from tests.support.golden import Golden
from tests.support.http_server import Server, status


def test_a_tree_becomes_an_archive_with_nothing_of_git(git_workspace: Workspace) -> None:
    tree = git_workspace.bare.tree(
        {**FILES, "link": (LINK, b"pkg/__init__.py"), "sub": (SUBMODULE, b"1" * 40), "lfs": LFS}
    )
    archive = git_workspace.archive(tree)
    found = {member.name: (member.type, member.mode, member.linkname) for member in git_workspace.members(archive)}
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
    assert {(member.mtime, member.uid, member.uname) for member in git_workspace.members(archive)} == {
        (315532800, 0, "")
    }
    assert (archive.submodules, archive.pointers) == (("sub",), ("lfs",))
    assert not list((git_workspace.store.root / "tmp").iterdir())


def test_equal_trees_give_equal_bytes(git_workspace: Workspace) -> None:
    """Whatever the commit says, and whatever .gitattributes asks of `git archive`."""
    tree = git_workspace.bare.tree({**FILES, ".gitattributes": b"run export-ignore\npyproject.toml export-subst\n"})
    one = git_workspace.archive(tree, git_workspace.bare.commit(tree, message="one"))
    two = git_workspace.archive(tree, git_workspace.bare.commit(tree, message="two"))
    assert one.digest == two.digest
    assert "x-1/run" in {member.name for member in git_workspace.members(one)}
    assert git_workspace.archive(git_workspace.bare.tree({**FILES, "more": b""})).digest != one.digest


def test_what_was_fetched_once_needs_no_server(git_workspace: Workspace) -> None:
    tree = git_workspace.bare.tree(FILES)
    commit = git_workspace.bare.commit(tree)
    archive = git_workspace.archive(tree, commit)
    requested = len(git_workspace.server.seen)
    assert git_workspace.archive(tree, commit) == archive
    assert len(git_workspace.server.seen) == requested
    git_workspace.store.path(archive.digest).unlink()
    assert git_workspace.archive(tree, commit) == archive
    assert len(git_workspace.server.seen) > requested


def test_a_commit_that_no_branch_holds_is_fetched(git_workspace: Workspace) -> None:
    tree = git_workspace.bare.tree(FILES)
    old = git_workspace.bare.commit(tree)
    git_workspace.bare.commit(git_workspace.bare.tree({"other": b""}))
    assert git_workspace.archive(tree, old)


def test_nothing_of_the_users_git_takes_part(git_workspace: Workspace) -> None:
    """But where copies of repositories are: tests/functional/test_git_places.py."""
    home = git_workspace.root / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[http]\n\tproxy = http://127.0.0.1:1\n[fetch]\n\tunpackLimit = nonsense\n")
    git_workspace.env |= {"HOME": str(home), "GIT_DIR": "/nonexistent", "GIT_SSH_COMMAND": "false"}
    assert git_workspace.archive(git_workspace.bare.tree(FILES))


@pytest.mark.fault(
    "Network", "a git server has another tree, no such commit, no such repository", "refused: says which"
)
def test_what_is_not_there(git_workspace: Workspace) -> None:
    tree = git_workspace.bare.tree(FILES)
    commit = git_workspace.bare.commit(tree)
    with raises("fetch-git-tree-mismatch") as caught:
        git_workspace.archive("2" * 40, commit)
    assert tree in str(caught.value)
    with raises("fetch-git-no-commit"):
        git_workspace.archive(tree, "1" * 40)
    with raises("fetch-no-repository"):
        git_workspace.archive(tree, commit, f"{git_workspace.server.url}/y.git")
    with raises("fetch-unreachable") as caught:
        git_workspace.archive(tree, commit, "http://127.0.0.1:1/x.git")
    assert "IMAGEGEN_GIT_127_0_0_1" in str(caught.value)
    assert not list((git_workspace.store.root / "tmp").iterdir())


@pytest.mark.fault("Network", "a git server answers nonsense, or redirects in circles", "refused in a sentence")
@pytest.mark.parametrize("code", [200, 302, 401, 500])
def test_a_server_that_is_none(code: int, git_workspace: Workspace) -> None:
    server = Server()
    try:
        server.behaviours = [status(code, Location="/x.git/info/refs")]
        with pytest.raises(FetchError):
            git_workspace.archive("2" * 40, "1" * 40, f"http://{server.host}/x.git")
    finally:
        server.close()


def test_another_protocol_is_not_spoken(git_workspace: Workspace, golden: Golden) -> None:
    """Plain http leaves this machine nowhere, be it by a redirect."""
    server = Server()
    try:
        server.behaviours = [status(302, Location="file:///etc/passwd")]
        with pytest.raises(FetchError):
            git_workspace.archive("2" * 40, "1" * 40, f"http://{server.host}/x.git")
        git_workspace.env["http_proxy"] = f"http://{server.host}"
        server.requests.clear()
        server.behaviours = [status(404)]
        with pytest.raises(FetchError) as caught:
            git_workspace.archive("2" * 40, "1" * 40, "http://git.example.com/x.git")
        golden.check(caught.value)
    finally:
        server.close()


def test_credentials_are_for_their_host_and_shown_nowhere(git_workspace: Workspace) -> None:
    server = Server()
    try:
        netrc = git_workspace.root / "netrc"
        netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
        netrc.chmod(0o600)
        git_workspace.env["NETRC"] = str(netrc)
        server.behaviours = [status(403)]
        with pytest.raises(FetchError) as caught:
            git_workspace.archive("2" * 40, "1" * 40, f"http://{server.host}/x.git")
        assert {headers.get("Authorization") for _, headers in server.requests} == {"Basic bWU6czNjcmV0"}
        assert "s3cret" not in str(caught.value)
        assert "bWU6czNjcmV0" not in str(caught.value)
    finally:
        server.close()


def test_credentials_do_not_follow_a_redirect(
    git_workspace: Workspace, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    headers: list[str | None] = []
    answer = git_workspace.server.answer

    def listening(handler: BaseHTTPRequestHandler) -> None:
        headers.append(handler.headers.get("Authorization"))
        answer(handler)

    monkeypatch.setattr(git_workspace.server, "answer", listening)
    server = Server()
    try:
        server.behaviours = [status(302, Location=f"{git_workspace.url}/info/refs?service=git-upload-pack")]
        name, port = server.host.split(":")
        git_workspace.env["IMAGEGEN_GIT_GIT_EXAMPLE_COM"] = f"http://me:s3cret@{name}:{port}"
        with raises("fetch-redirect-refused") as caught:
            git_workspace.archive(git_workspace.bare.tree(FILES), url="https://git.example.com/x.git")
        golden.check(caught.value.fix)
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
        bare.raw_tree([("120000", b"a", blob), ("40000", b"a", inner)]): "which is not a folder",
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
def test_trees_that_are_no_checkout(git_workspace: Workspace) -> None:
    for tree, why in hostile(git_workspace.bare).items():
        commit = git_workspace.bare.commit(tree, branch=None)
        git_workspace.bare.git("update-ref", "refs/heads/main", commit)
        with pytest.raises(FetchError, match=why):
            git_workspace.archive(tree, commit)
    assert not list((git_workspace.store.root / "tmp").iterdir())


@pytest.mark.fault("Wheels", "a tree of a few bytes names millions of files", "refused before memory or disk is full")
def test_a_tree_that_is_a_bomb(git_workspace: Workspace) -> None:
    inside = git_workspace.bare.tree({"f": b"x"})
    for _ in range(12):
        inside = git_workspace.bare.raw_tree([("40000", b"%d" % number, inside) for number in range(10)])
    with raises("fetch-git-tree-invalid"):
        git_workspace.archive(inside)


def test_paths_that_differ_in_case_alone_are_two(git_workspace: Workspace) -> None:
    archive = git_workspace.archive(git_workspace.bare.tree({"README": b"1", "readme": b"2"}))
    assert [member.name for member in git_workspace.members(archive)] == ["x-1/README", "x-1/readme"]


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
