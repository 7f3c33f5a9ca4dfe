"""Mirrors of git servers: which place is asked for a repository, and that what it gives is held to the same hashes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.git.location import places
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from tests.support.errors import raises
from tests.support.git_server import Bare, GitServer
from tests.support.golden import Golden

APEX = "https://github.com/NVIDIA/apex"
FILES = {"setup.py": b"", "apex/__init__.py": b""}


def settings(**env: str) -> Settings:
    basic = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    return Settings.from_environment(basic | env)


def requested(url: str = APEX, **env: str) -> list[str]:
    return [place.url for place in places(url, settings(**env))]


def configured(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / ".gitconfig").write_text(text)
    return {"HOME": str(tmp_path)}


def test_a_repository_is_asked_for_where_the_matrix_says() -> None:
    assert requested() == [APEX]


def test_one_mirror_for_all_hosts_has_it_by_host_and_path_or_by_path() -> None:
    below = ["https://m.test/git/github.com/NVIDIA/apex", "https://m.test/git/NVIDIA/apex"]
    assert requested(IMAGEGEN_GIT_MIRROR="https://m.test/git/") == below
    assert requested(IMAGEGEN_GIT_MIRROR="/srv/git") == ["/srv/git/github.com/NVIDIA/apex", "/srv/git/NVIDIA/apex"]
    assert requested(IMAGEGEN_GIT_MIRROR="file:///srv/a%20b") == [
        "/srv/a b/github.com/NVIDIA/apex",
        "/srv/a b/NVIDIA/apex",
    ]
    assert requested("https://github.com/../../etc", IMAGEGEN_GIT_MIRROR="/srv/git")[1] == "/srv/git/etc"


def test_the_narrower_word_wins(tmp_path: Path) -> None:
    env = configured(tmp_path, f'[url "https://three.test/"]\n\tinsteadOf = {APEX}\n')
    assert requested(**env) == ["https://three.test/"]
    env["IMAGEGEN_GIT_MIRROR"] = "https://two.test"
    assert requested(**env)[1] == "https://two.test/NVIDIA/apex"
    env["IMAGEGEN_GIT_GITHUB_COM"] = "https://one.test/gh"
    assert requested(**env) == ["https://one.test/gh/NVIDIA/apex"]
    assert requested("https://gitlab.com/a/b", **env)[1] == "https://two.test/a/b"


def test_the_longest_rule_of_gits_configuration_is_taken(tmp_path: Path) -> None:
    text = (
        '[url "https://m.test/all/"]\n\tinsteadOf = https://github.com/\n\tinsteadOf = https://gitlab.com/\n'
        '[url "git@github.com:"]\n\tinsteadOf = https://github.com/NVIDIA/\n'
        '[url "https://Push.test/"]\n\tpushInsteadOf = https://github.com/NVIDIA/apex\n'
        '[url "/srv/a b/"]\n\tinsteadOf = https://github.com/a/\n[url "https://empty.test"]\n\tinsteadOf\n'
    )
    env = configured(tmp_path, text)
    assert requested(**env) == ["https://m.test/all/NVIDIA/apex"]
    assert requested("https://gitlab.com/x/y", **env) == ["https://m.test/all/x/y"]
    assert requested("https://github.com/a/b", **env) == ["/srv/a b/b"]
    assert requested("https://github.org/a/b", **env) == ["https://github.org/a/b"]


def test_gits_configuration_is_found_as_git_finds_it(tmp_path: Path) -> None:
    rule = '[url "https://m.test/"]\n\tinsteadOf = https://github.com/\n'
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "config").write_text(rule)
    (tmp_path / "other").write_text(f"[include]\n\tpath = {tmp_path}/git/config\n")
    assert requested(XDG_CONFIG_HOME=str(tmp_path)) == ["https://m.test/NVIDIA/apex"]
    assert requested(GIT_CONFIG_GLOBAL=str(tmp_path / "other")) == ["https://m.test/NVIDIA/apex"]
    variables = {"KEY_0": "url.https://v.test/.insteadOf", "VALUE_0": "https://github.com/", "COUNT": "1"}
    assert requested(**{f"GIT_CONFIG_{name}": value for name, value in variables.items()}) == [
        "https://v.test/NVIDIA/apex"
    ]


def test_a_setting_that_names_no_address_is_reported_by_its_name(tmp_path: Path, golden: Golden) -> None:
    with raises("fetch-git-address-invalid"):
        requested(IMAGEGEN_GIT_MIRROR="srv/git")
    with raises("fetch-git-address-invalid"):
        requested(IMAGEGEN_GIT_GITHUB_COM="file://elsewhere/srv")
    with raises("fetch-git-configuration") as caught:
        requested(**configured(tmp_path, "[url\n"))
    golden.check(caught.value)


@given(st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="/._-~+"), max_size=40))
def test_no_path_leads_out_of_a_directory(path: str) -> None:
    for url in requested(f"https://github.com/{path}", IMAGEGEN_GIT_MIRROR="/srv/git"):
        assert os.path.normpath(url) == "/srv/git" or os.path.normpath(url).startswith("/srv/git/")


class Mirror:
    """A server or directory with one repository, by the path that it has there."""

    def __init__(self, root: Path, path: str) -> None:
        self.root = root
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        self.bare = Bare(root / path)
        self.tree = self.bare.tree(FILES)
        self.commit = self.bare.commit(self.tree)

    def archive(self, env: dict[str, str], tree: str | None = None) -> git.PackedTree:
        source = git.TreeSource(APEX, self.commit, tree or self.tree)
        return git.archive(source, "apex-1", Context(Store(self.root / "store"), settings(**env), Quiet()))


@pytest.fixture(params=["github.com/NVIDIA/apex", "NVIDIA/apex.git"])
def mirror(tmp_path: Path, request: pytest.FixtureRequest) -> Mirror:
    return Mirror(tmp_path, request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    server = GitServer(tmp_path)
    yield server
    server.close()


def test_a_servers_copy_is_as_good(mirror: Mirror, server: GitServer) -> None:
    assert mirror.archive({"IMAGEGEN_GIT_MIRROR": server.url})
    with raises("fetch-git-tree-mismatch"):
        mirror.archive({"IMAGEGEN_GIT_MIRROR": server.url}, "2" * 40)


def test_a_directory_is_as_good(mirror: Mirror, tmp_path: Path) -> None:
    """Be it another user's."""
    for path in (tmp_path, *tmp_path.rglob("*")):
        if os.geteuid() == 0 and "store" not in path.parts:
            os.chown(path, 65534, 65534)
    made = mirror.archive({"IMAGEGEN_GIT_MIRROR": str(tmp_path)})
    assert mirror.archive({"IMAGEGEN_GIT_MIRROR": f"file://{tmp_path}"}) == made
    with raises("fetch-git-tree-mismatch"):
        mirror.archive({"IMAGEGEN_GIT_MIRROR": str(tmp_path)}, "2" * 40)


def test_gits_own_configuration_leads_there(server: GitServer, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, "deep/apex")
    for base in (f"{server.url}/deep/", f"{tmp_path}/deep/"):
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        env = configured(tmp_path, f'[url "{base}"]\n\tinsteadOf = https://github.com/NVIDIA/\n')
        assert mirror.archive(env)


@pytest.mark.fault(
    "Network", "a mirror of a git server lacks the repository, or the commit, or is away", "refused: names the mirror"
)
def test_a_mirror_that_has_it_not(server: GitServer, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, "NVIDIA/other")
    for base in (server.url, str(tmp_path)):
        with raises("fetch-no-repository") as caught:
            mirror.archive({"IMAGEGEN_GIT_MIRROR": base})
        assert f"{base}/github.com/NVIDIA/apex does not exist" in str(caught.value)
        assert f"{base}/NVIDIA/apex does not exist" in str(caught.value)
    Mirror(tmp_path, "NVIDIA/apex")
    mirror.commit = "1" * 40
    for base in (server.url, str(tmp_path)):
        with raises("fetch-git-no-commit") as caught:
            mirror.archive({"IMAGEGEN_GIT_MIRROR": base})
        assert "bring what IMAGEGEN_GIT_MIRROR names up to date" in str(caught.value)
    with raises("fetch-unreachable") as caught:
        mirror.archive({"IMAGEGEN_GIT_MIRROR": "http://127.0.0.1:1"})
    assert "IMAGEGEN_GIT_MIRROR names it" in str(caught.value)


def test_a_directory_is_for_the_user_to_name(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, "NVIDIA/apex")
    with pytest.raises(FetchError):
        git.archive(
            git.TreeSource(f"file://{tmp_path}/NVIDIA/apex", mirror.commit, mirror.tree),
            "apex-1", Context(Store(tmp_path / "store"), settings(), Quiet()),
        )  # fmt: skip
