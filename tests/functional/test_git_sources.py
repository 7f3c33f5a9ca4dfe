"""A commit as a recipe names it: with the tag that leads to it, and with submodules, on real git on loopback."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError
from imagegen.core.git.submodule import Submodule
from imagegen.core.net import UnreachableError
from imagegen.core.store import Store
from tests.support.errors import raises
from tests.support.git_server import LINK, SUBMODULE, Bare
from tests.support.git_workspace import FILES, Workspace
from tests.support.golden import Golden

NOWHERE = "http://127.0.0.1:1/x.git"


class Saying:
    """Progress that keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def meter(self, label: str, total: int) -> None:
        raise AssertionError(label)


@pytest.fixture
def source(git_workspace: Workspace) -> git.TreeSource:
    """A commit under the annotated tag v1 and the branch main."""
    tree = git_workspace.bare.tree(FILES)
    commit = git_workspace.bare.commit(tree)
    git_workspace.bare.git("tag", "-a", "-m", "x", "v1", commit)
    return git.TreeSource(git_workspace.url, commit, tree)


def archive(git_workspace: Workspace, source: git.TreeSource) -> git.PackedTree:
    return git.archive(
        source, "x-1", Context(git_workspace.store, Settings.from_environment(git_workspace.env), Saying())
    )  # type: ignore[arg-type]


def test_a_name_that_leads_to_the_commit(git_workspace: Workspace, source: git.TreeSource) -> None:
    plain = archive(git_workspace, source)
    for ref in ("v1", "main", "refs/tags/v1", "refs/heads/main"):
        assert archive(git_workspace, replace(source, ref=ref)) == plain


def test_a_tag_goes_before_a_branch_of_its_name(git_workspace: Workspace, source: git.TreeSource) -> None:
    git_workspace.bare.commit(git_workspace.bare.tree({"other": b""}), branch="v1")
    assert archive(git_workspace, replace(source, ref="v1"))


@pytest.mark.fault("Network", "a tag or branch of a git server leads to another commit", "refused: from what to what")
def test_a_name_that_moved(git_workspace: Workspace, source: git.TreeSource, golden: Golden) -> None:
    """Though the commit is still there, and here."""
    archive(git_workspace, source)
    moved = git_workspace.bare.commit(git_workspace.bare.tree({"other": b""}))
    git_workspace.bare.git("tag", "-f", "v1", moved)
    for ref in ("v1", "main"):
        with raises("fetch-git-ref-moved") as caught:
            archive(git_workspace, replace(source, ref=ref))
        golden.check(caught.value)
    assert archive(git_workspace, source)


def test_a_name_that_is_gone(git_workspace: Workspace, source: git.TreeSource) -> None:
    for ref in ("v2", "1", "*"):
        with raises("fetch-git-no-ref"):
            archive(git_workspace, replace(source, ref=ref))


def test_a_ref_of_an_unreachable_server(git_workspace: Workspace, source: git.TreeSource, golden: Golden) -> None:
    """Unknown is not moved: what was fetched before is taken, and that is said."""
    away = replace(source, url=NOWHERE, ref="v1")
    with pytest.raises(UnreachableError):
        archive(git_workspace, away)
    made, progress = archive(git_workspace, source), Saying()
    assert (
        git.archive(away, "x-1", Context(git_workspace.store, Settings.from_environment(git_workspace.env), progress))
        == made
    )  # type: ignore[arg-type]
    golden.check(progress.said)


def test_excluded_entries_are_neither_fetched_nor_packed(git_workspace: Workspace) -> None:
    """A mirror need not have their files, and the archive is the same from one that has."""
    bare = git_workspace.bare
    bare.git("config", "uploadpack.allowFilter", "true")
    tree = bare.tree({"pkg/a.py": b"1", "pkg/b.py": b"1", "tests/large": b"2" * 5000, "top": b"3"})
    source = git.TreeSource(git_workspace.url, bare.commit(tree), tree, exclude=("tests",))
    part = archive(git_workspace, source)
    assert [member.name for member in git_workspace.members(part)] == ["x-1/pkg/a.py", "x-1/pkg/b.py", "x-1/top"]
    assert part.tree == tree
    assert archive(git_workspace, replace(source, exclude=())).digest != part.digest

    lost = bare.git("rev-parse", f"{tree}:tests/large").strip()
    (bare.path / "objects" / lost[:2] / lost[2:]).unlink()
    again = replace(git_workspace, store=Store(git_workspace.root / "again"))
    assert archive(again, source) == part
    by_path = replace(
        git_workspace,
        store=Store(git_workspace.root / "by-path"),
        env={**git_workspace.env, "IMAGEGEN_GIT_MIRROR": str(bare.path.parent)},
    )
    assert archive(by_path, replace(source, url="https://host.test/x")) == part


@pytest.mark.parametrize("exclude", [("test",), ("pkg", "top")])
def test_entries_that_cannot_be_excluded(git_workspace: Workspace, exclude: tuple[str, ...]) -> None:
    tree = git_workspace.bare.tree({"pkg/a.py": b"1", "top": b"3"})
    with raises("fetch-git-exclude"):
        archive(
            git_workspace, git.TreeSource(git_workspace.url, git_workspace.bare.commit(tree), tree, exclude=exclude)
        )


class Nested:
    """x has submodules at lib/a and b; the one at lib/a has one at deep."""

    def __init__(self, git_workspace: Workspace) -> None:
        self.git_workspace = git_workspace
        deep = self._repository("deep", {"d.h": b"4"})
        a = self._repository("a", {"a.h": b"1", "deep": (SUBMODULE, deep.commit.encode()), "l": (LINK, b"../../top")})
        b = self._repository("b", {"b.h": b"2"})
        submodules = {"lib/a": (SUBMODULE, a.commit.encode()), "b": (SUBMODULE, b.commit.encode())}
        tree = git_workspace.bare.tree({"top": b"0", "lib/z": b"", **submodules})
        self.a, self.b, self.deep = replace(a, path="lib/a"), replace(b, path="b"), replace(deep, path="lib/a/deep")
        self.plain = git.TreeSource(git_workspace.url, git_workspace.bare.commit(tree), tree)

    def _repository(self, name: str, files: dict[str, bytes | tuple[str, bytes]]) -> Submodule:
        bare = Bare(self.git_workspace.root / f"{name}.git")
        tree = bare.tree(files)
        return Submodule(name, f"{self.git_workspace.server.url}/{name}.git", bare.commit(tree), tree)

    def archive(self, *submodules: Submodule) -> git.PackedTree:
        return archive(self.git_workspace, replace(self.plain, submodules=submodules))

    def names(self, archive: git.PackedTree) -> list[str]:
        return [member.name.removeprefix("x-1/") for member in self.git_workspace.members(archive)]


@pytest.fixture
def nested(git_workspace: Workspace) -> Nested:
    return Nested(git_workspace)


def test_submodules_come_along_at_their_paths(nested: Nested) -> None:
    whole = nested.archive(nested.deep, nested.b, nested.a)
    assert nested.names(whole) == ["b/b.h", "lib/a/a.h", "lib/a/deep/d.h", "lib/a/l", "lib/z", "top"]
    assert whole.submodules == ()
    assert nested.archive(nested.a, nested.b, nested.deep) == whole


def test_submodules_that_are_not_named_stay_empty(nested: Nested) -> None:
    part = nested.archive(nested.a)
    assert nested.names(part) == ["b", "lib/a/a.h", "lib/a/deep", "lib/a/l", "lib/z", "top"]
    assert part.submodules == ("b", "lib/a/deep")
    assert nested.archive().submodules == ("b", "lib/a")
    assert nested.archive().digest != part.digest


@pytest.mark.fault(
    "Network", "a submodule's commit or tree is not the one that is named, or its server is away", "refused: says which"
)
def test_submodules_that_drifted(nested: Nested, golden: Golden) -> None:
    drifted = replace(nested.a, commit=nested.b.commit)
    with raises("fetch-git-submodule") as caught:
        nested.archive(drifted)
    golden.check(caught.value)
    with pytest.raises(FetchError) as caught:
        nested.archive(replace(nested.a, tree="2" * 40))
    golden.check(caught.value)
    assert nested.a.tree in str(caught.value)
    with raises("fetch-no-repository"):
        nested.archive(replace(nested.a, url=f"{nested.git_workspace.server.url}/none.git"))
    with raises("fetch-unreachable") as caught:
        nested.archive(replace(nested.a, url=NOWHERE))
    assert "IMAGEGEN_GIT_127_0_0_1" in str(caught.value)
    with raises("fetch-git-submodule"):
        nested.archive(replace(nested.a, path="lib/z"))
    with raises("fetch-git-submodule"):
        nested.archive(nested.deep)
    assert not list((nested.git_workspace.store.root / "tmp").iterdir())


def test_what_is_refused_before_a_submodule_is_fetched(nested: Nested) -> None:
    with raises("fetch-git-submodule"):
        nested.archive(replace(nested.a, commit="1" * 40))
    assert not [path for path in nested.git_workspace.server.seen if "/a.git" in path]


def test_archives_without_submodules_are_what_they_were(git_workspace: Workspace) -> None:
    """Locks hold this digest: another one means that `_FORMAT` was forgotten, and all of them to be made anew."""
    made = archive(
        git_workspace,
        git.TreeSource(git_workspace.url, git_workspace.bare.commit(tree := git_workspace.bare.tree(FILES)), tree),
    )
    assert made.digest == "sha256:2074b964c44a6efe6f5640eb005174adb02a5c4fa1c0d070e2c5c6d47d8e9f06"
