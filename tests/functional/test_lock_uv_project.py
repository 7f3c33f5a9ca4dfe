"""A cell whose contents a commit's uv.lock says: members, submodules, files by address; no index, no network."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import FetchError, LockError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.lock import contradictions, dumps, stale
from imagegen.lock import sdist as sdists
from imagegen.lock.file import LockErrors, loads
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.stages import LockRequest, lock_cell
from imagegen.lock.model import URL, Lock, LockedFile, LockedSdist
from imagegen.spec.model import Cell
from tests.support.git_server import SUBMODULE, Bare
from tests.support.lock_workspace import Chooser
from tests.support.lock_workspace import Workspace as Resolved
from tests.support.matrix_samples import SMALL, complaint, load

PYPROJECT = b'[build-system]\nrequires = []\nbuild-backend = "b"\n[project]\nname = "app"\nversion = "1.0"\n'
APP = PYPROJECT + b'dependencies = ["torch", "tool>=2"]\n'
LOCK = """\
version = 1
requires-python = ">=3.11"
[[package]]
name = "app"
version = "1.0"
source = { editable = "." }
dependencies = [{ name = "torch" }, { name = "deep" }, { name = "part" }, { name = "other" }]
[package.optional-dependencies]
plus = [{ name = "tool" }]
[[package]]
name = "part"
version = "0.1"
source = { editable = "packages/part" }
[[package]]
name = "deep"
source = { editable = "deps/sub/inner" }
[[package]]
name = "other"
version = "3.0+local.1"
source = { git = "https://git.example.org/other.git?subdirectory=py#OTHER" }
[[package]]
name = "torch"
version = "2.13.0+cpu"
source = { registry = "https://download.example.org/whl/cpu" }
wheels = [
    { url = "https://files.example.org/torch-2.13.0%2Bcpu-cp310-cp310-linux_x86_64.whl", hash = "sha256:BAD" },
    { url = "https://files.example.org/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl", hash = "sha256:TORCH" },
]
[[package]]
name = "tool"
version = "2.0"
source = { registry = "PYPI" }
wheels = [{ url = "https://files.example.org/packages/tool-2.0-py3-none-any.whl", hash = "sha256:TOOL", size = 7 }]
"""
OWN = "components:\n  deep: {description: d}\n  app: {description: a, git: {main: GIT}}\n"
MATRIX = SMALL.replace("components:\n", OWN, 1)
IMAGE = """\
    components:
      torch: {version: "==2.13.0", because: t}
      deep: {version: "==0.9", because: its backend asks git}
      app: {git: main, uv_lock: uv.lock, extras: [plus], because: a}
"""


class Mirror:
    """Repositories as a git mirror has them, a matrix that names their commits, and a store."""

    def __init__(self, root: Path, lock: str = LOCK) -> None:
        self.root = root
        for name in ("git/git.example.org", "matrix"):
            (root / name).mkdir(parents=True)
        sub = self._commit("sub", {"inner/pyproject.toml": PYPROJECT})
        other = self._commit("other", {"py/pyproject.toml": PYPROJECT})
        text = lock.replace("OTHER", other[0]).replace("TORCH", "1" * 64).replace("TOOL", "2" * 64)
        text = text.replace("PYPI", PYPI_SIMPLE_ENDPOINT.rstrip("/"))
        modules = b'[submodule "sub"]\n\tpath = deps/sub\n\turl = git@git.example.org:sub.git\n'
        self.commits = {"sub": sub[0], "other": other[0]}
        files = {
            "pyproject.toml": APP, "uv.lock": text.replace("BAD", "3" * 64).encode(), ".gitmodules": modules,
            "packages/part/pyproject.toml": PYPROJECT, "deps/sub": (SUBMODULE, sub[0].encode()), "docs/page": b"p",
        }  # fmt: skip
        self.commit, self.tree = self._commit("app", files)
        self.store = Store(root / "store")
        (root / "base").mkdir()
        self.first = Resolved(root / "base").first
        env = {"HOME": str(root), "PATH": os.environ["PATH"], "IMAGEGEN_GIT_MIRROR": str(root / "git")}
        self.settings = Settings.from_environment(env | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"})

    def _commit(self, name: str, files: dict[str, bytes | tuple[str, bytes]]) -> tuple[str, str]:
        bare = Bare(self.root / f"git/git.example.org/{name}.git")
        tree = bare.tree(files)
        return bare.commit(tree), tree

    def cell(
        self, image: str = IMAGE, requires: str = '["torch", "tool>=2"]', version: str = "1.0", exclude: str = "[]"
    ) -> Cell:
        entry = f'{{url: "https://git.example.org/app.git", commit: "{self.commit}", tree: "{self.tree}", '
        entry += f'version: "{version}", requires: {requires}, build_requires: [], exclude: {exclude}}}'
        text = MATRIX.replace("GIT", entry)
        text = text[: text.index("    components:\n      torch: {v")] + image + text[text.index("    gpus: [sm_90]") :]
        (cell,) = load(self.root / "matrix", text).select("small")
        return cell

    def make(self, cell: Cell, previous: Lock | None = None) -> Lock:
        first = previous or replace(
            self.first, cell=cell.id, image=cell.image, axes=dict(cell.axes),
            inputs={"base": cell.inputs["base"]},
        )  # fmt: skip
        context = Context(self.store, self.settings, Quiet())
        return lock_cell(LockRequest(cell, LockOptions(), (), Chooser(), context), first)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    def build(name: str, version: str, sdist: LockedSdist, workshop: sdists.SdistBuilder) -> LockedFile:
        filename = f"{name}-{version}-py3-none-any.whl"
        return LockedFile(filename, 1, sdist.file.sha256, sdist.file.index)

    monkeypatch.setattr(sdists, "build", build)
    return Mirror(tmp_path)


def test_the_lock_holds_what_the_file_says(mirror: Mirror) -> None:
    cell = mirror.cell()
    lock = mirror.make(cell)
    found = {wheel.name: wheel for wheel in lock.wheels}
    assert {name: wheel.version for name, wheel in found.items()} == {
        "app": "1.0", "deep": "0.9", "other": "3.0+local.1", "part": "0.1", "tool": "2.0", "torch": "2.13.0+cpu"
    }  # fmt: skip
    torch, tool = found["torch"], found["tool"]
    filename = "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    url = "https://files.example.org/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
    assert torch.file == LockedFile(filename, None, "1" * 64, URL, url=url)
    assert torch.choice and (torch.because, torch.via) == ("t", ("app",))
    assert tool.file == LockedFile(
        "tool-2.0-py3-none-any.whl", 7, "2" * 64, "pypi", "packages/tool-2.0-py3-none-any.whl"
    )
    assert (tool.choice, tool.via) == (None, ("app",))
    assert loads(dumps(lock)) == lock
    assert (stale(lock, cell), contradictions(lock, cell)) == ((), ())


def test_members_are_commits_of_their_own_repositories(mirror: Mirror) -> None:
    found = {wheel.name: wheel.sdist.git for wheel in mirror.make(mirror.cell()).wheels if wheel.sdist}
    at = {name: git and (git.url, git.commit, git.subdirectory) for name, git in found.items()}
    assert at == {
        "app": ("https://git.example.org/app.git", mirror.commit, ""),
        "part": ("https://git.example.org/app.git", mirror.commit, "packages/part"),
        "deep": ("https://git.example.org/sub.git", mirror.commits["sub"], "inner"),
        "other": ("https://git.example.org/other.git", mirror.commits["other"], "py"),
    }
    assert all(git and len(git.tree) == 40 for git in found.values())
    releases = {wheel.name: wheel.release for wheel in mirror.make(mirror.cell()).wheels}
    assert releases["other"] == f"3.0+local.1.git.{mirror.commits['other'][:12]}"
    assert releases["part"] == f"0.1+git.{mirror.commit[:12]}"
    assert all(map(Version, releases.values()))


def test_a_locked_commit_gives_the_archive_that_the_lock_names(mirror: Mirror) -> None:
    found = {wheel.name: wheel.sdist for wheel in mirror.make(mirror.cell(exclude="[docs]")).wheels if wheel.sdist}
    for name, version in (("app", "1.0"), ("part", "0.1")):
        locked = found[name].git
        assert locked and locked.exclude == ("docs",)
        source = git.TreeSource(locked.url, locked.commit, locked.tree, exclude=locked.exclude)
        archive = git.archive(source, f"{name}-{version}", Context(mirror.store, mirror.settings, Quiet()))
        assert archive.digest == f"sha256:{found[name].file.sha256}"


def test_locking_again_changes_nothing(mirror: Mirror) -> None:
    lock = mirror.make(cell := mirror.cell())
    assert mirror.make(cell, lock) == lock


def test_another_choice_or_commit_makes_the_lock_stale(mirror: Mirror) -> None:
    lock = mirror.make(mirror.cell())
    assert "uv.lock" in stale(lock, mirror.cell(IMAGE.replace("[plus]", "[]")))
    mirror.commit = "a" * 40
    assert "uv.lock" in stale(lock, mirror.cell())


def test_every_repository_that_cannot_be_had_is_named(mirror: Mirror) -> None:
    for name in ("sub", "other"):
        (mirror.root / f"git/git.example.org/{name}.git").rename(mirror.root / name)
    with pytest.raises(LockErrors) as caught:
        mirror.make(mirror.cell())
    assert all(isinstance(each, FetchError) for each in caught.value.errors)
    named = [name for each in caught.value.errors for name in ("sub", "other") if f"/{name}.git" in each.what]
    assert sorted(named) == ["other", "sub"]


@pytest.mark.parametrize(
    "image",
    [
        IMAGE.replace("==2.13.0", "==2.12.0"),
        IMAGE.replace('version: "==0.9", ', ""),
        IMAGE.replace("[plus]", "[absent]"),
        IMAGE.replace("uv_lock: uv.lock", "uv_lock: absent.lock"),
        IMAGE.replace("uv_lock: uv.lock", "uv_lock: uv.lock, groups: [dev]"),
        IMAGE + "      numpy: {because: the file has none}\n",
    ],
)
def test_a_file_that_does_not_answer_the_cell(mirror: Mirror, image: str) -> None:
    with pytest.raises(LockError):
        mirror.make(mirror.cell(image))


def test_metadata_that_is_not_the_commits(mirror: Mirror) -> None:
    """Both for a cell that is resolved and for one that a uv.lock describes."""
    for image in (IMAGE, "    components: {app: {git: main, because: a}}\n"):
        for wrong in ({"requires": '["torch"]'}, {"requires": '["torch", "tool>=2", "more"]'}, {"version": "0.9"}):
            with pytest.raises(LockError) as caught:
                mirror.make(mirror.cell(image, **wrong))
            assert "app" in caught.value.what and mirror.commit in caught.value.what


def test_what_the_matrix_may_not_say(tmp_path: Path) -> None:
    for number, component in enumerate(
        (
            "{uv_lock: uv.lock, because: b}",
            '{version: "==1", groups: [dev], because: b}',
        )
    ):
        text = SMALL.replace("numpy: {because: n}", f"numpy: {component}")
        assert complaint(tmp_path / str(number), text)
