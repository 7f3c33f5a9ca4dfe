"""A cell on a registry's image with a component from git: locked against stand-ins on loopback, the sandbox played."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError, LockError
from imagegen.core.net import package_index
from imagegen.core.progress import Quiet
from imagegen.image.inputs import contents, fetch
from imagegen.lock import contradictions, dumps, read, stale, write
from imagegen.lock.file import loads
from imagegen.lock.model import Lock, LockedGit
from imagegen.spec.foundation import Base
from imagegen.spec.model import Component, GitSource, Index, Requirement, Sdist
from tests.support.errors import raises
from tests.support.git_server import Bare, GitServer
from tests.support.golden import Golden
from tests.support.lock_workspace import LATER, Workspace
from tests.support.registry_server import StandIn
from tests.support.wheels import make_wheel

DEAD = "http://127.0.0.1:1"
METADATA = Sdist("0.15.1", ("torch",), ("backend==1.0",))


class Wider(Workspace):
    """A Workspace with a base from a registry and the component mbridge from git."""

    def __init__(self, root: Path, registry: StandIn, server: GitServer) -> None:
        super().__init__(root)
        self.root, self.registry, self.server = root, registry, server
        self.env["PATH"] = os.environ["PATH"]
        self.env["IMAGEGEN_REGISTRY_DOCKER_IO"] = registry.host
        self.bare = Bare(root / "mbridge.git")
        self.index.wheel("backend", "1.0")
        self.built: list[list[str]] = []
        registry.push("library/cuda:13", [b"layer"], Env=["PATH=/cuda/bin:/usr/bin"], Entrypoint=["/hello"])
        image = "docker.io/library/cuda:13"
        base = Base("cuda", "registry", None, image, "ubuntu24.04", "2.39", {}, "")
        self.cell = replace(self.cell, base=base, inputs={"base": "c" * 64})
        self.choose(self.bare.tree({"pyproject.toml": b"a = 1"}))

    def choose(self, tree: str, *, tell: str | None = None, compiled: bool = False, url: str | None = None) -> None:
        """Let the cell ask for a commit with this tree, or one of which the matrix says another tree."""
        commit = self.bare.commit(tree)
        source = GitSource("fixed", url or f"{self.server.url}/mbridge.git", commit, tell or tree, METADATA)
        component = Component("mbridge", "mbridge", "", (), compiled=compiled, git={"fixed": source})
        others = [each for each in self.cell.requirements if each.component.name != "mbridge"]
        mine = Requirement(component, "==0.15.1", "the commit that works", "pypi", source)
        self.cell = replace(self.cell, requirements=(mine, *others))

    def lock(self, previous: Lock | None = None) -> Lock:
        return self.make(previous or replace(self.first, inputs={"base": "moved"}))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wider]:
    registry, server = StandIn(), GitServer(tmp_path)
    workspace = Wider(tmp_path, registry, server)
    made: dict[str, bytes] = {}

    class StandInSandbox:
        """A sandbox whose result depends on the archive alone, as the real one's does."""

        def __init__(self, rootfs: Path, *, read_only: dict[str, Path], memory: int) -> None:
            self.files = read_only
            workspace.built.append(sorted(read_only))

        def run(self, argv: list[str], *, env: dict[str, str], timeout: float) -> bytes:
            source = next(path for name, path in self.files.items() if name.endswith(".tar"))
            name, info = "mbridge-0.15.1-py3-none-any.whl", "mbridge-0.15.1.dist-info"
            if source.name not in made:  # a zip archive holds the time of its making
                made[source.name] = make_wheel(
                    tmp_path, {"mbridge.py": source.name.encode()}, filename=name, info=info
                ).read_bytes()
            return f"{name}\n".encode() + made[source.name]

    monkeypatch.setattr("imagegen.lock.sdist.Sandbox", StandInSandbox)
    monkeypatch.setattr("imagegen.image.base.rootfs", lambda *args: tmp_path)
    yield workspace
    registry.close()
    server.close()


def source_of(lock: Lock) -> LockedGit | None:
    wheel = next(wheel for wheel in lock.wheels if wheel.name == "mbridge")
    return wheel.sdist.git if wheel.sdist else None


def test_base_and_commit_are_locked_by_hash(workspace: Wider) -> None:
    lock = workspace.lock()
    assert lock.base.content
    assert lock.base.content.config.env == ("PATH=/cuda/bin:/usr/bin",)
    requested = workspace.cell.requirements[0].git
    assert requested
    assert source_of(lock) == LockedGit("fixed", requested.url, requested.commit, requested.tree)
    assert {wheel.name: wheel.version for wheel in lock.wheels} == {
        "mbridge": "0.15.1", "peft": "1.0", "torch": "2.13.0+cpu"
    }  # fmt: skip
    assert workspace.built == [["/backend-1.0-py3-none-any.whl", "/mbridge-0.15.1.tar", "/tomllib"]] * 2
    write(lock, workspace.root / "lock.toml")
    assert read(workspace.root / "lock.toml") == lock
    assert stale(lock, workspace.cell) == ()
    assert contradictions(lock, workspace.cell) == ()
    assert lock.base.content.layers[0].digest in contents(lock)
    assert workspace.lock(lock) is lock
    assert str(workspace.registry.host) not in dumps(lock)


def test_commits_of_one_version_are_distinguished(workspace: Wider) -> None:
    one = workspace.lock()
    workspace.choose(workspace.bare.tree({"pyproject.toml": b"a = 2"}))
    assert contradictions(one, workspace.cell) == ("wheel mbridge",)
    two = workspace.lock(one)
    assert source_of(one) != source_of(two)
    assert {wheel.name: wheel.version for wheel in one.wheels} == {wheel.name: wheel.version for wheel in two.wheels}
    assert len({next(each.file.sha256 for each in lock.wheels if each.name == "mbridge") for lock in (one, two)}) == 2


def test_another_machine_makes_the_same_wheel_from_the_lock(workspace: Wider) -> None:
    lock = workspace.lock()
    lock = replace(lock, wheels=tuple(wheel for wheel in lock.wheels if wheel.name == "mbridge"))
    settings = Settings.from_environment(workspace.env)
    (wheel,) = lock.wheels
    assert wheel.sdist
    for file in (wheel.file, wheel.sdist.file):
        workspace.store.path(file.digest).unlink()
    fetch(lock, Context(workspace.store, settings, Quiet()))
    assert workspace.store.intact(wheel.file.digest, wheel.file.size)
    for file in (wheel.file, wheel.sdist.file):
        workspace.store.path(file.digest).unlink()
    workspace.server.close()
    with raises("fetch-files-missing") as caught:
        fetch(lock, Context(workspace.store, settings, Quiet()))
    assert "IMAGEGEN_GIT_127_0_0_1" in str(caught.value)


def test_an_archive_that_the_lock_does_not_name_is_no_source(workspace: Wider) -> None:
    lock = workspace.lock()
    (wheel,) = (wheel for wheel in lock.wheels if wheel.name == "mbridge")
    assert wheel.sdist
    forged = replace(wheel.sdist, file=replace(wheel.sdist.file, sha256="0" * 64))
    workspace.store.path(wheel.file.digest).unlink()
    settings = Settings.from_environment(workspace.env)
    with raises("not-reproducible-archive"):
        fetch(replace(lock, wheels=(replace(wheel, sdist=forged),)), Context(workspace.store, settings, Quiet()))


@pytest.mark.fault(
    "Network",
    "a cell's registry, index and git server are all out of reach",
    "one error names all three, with variables",
)
def test_all_that_cannot_be_reached_is_reported_at_once(workspace: Wider, golden: Golden) -> None:
    workspace.env |= {"IMAGEGEN_REGISTRY_DOCKER_IO": DEAD, "IMAGEGEN_INDEX_PYTORCH_CPU": DEAD}
    workspace.choose(workspace.bare.tree({"a": b""}), url=f"{DEAD}/mbridge.git")
    with pytest.raises(LockError, match="3 errors found") as caught:
        workspace.lock()
    text = str(caught.value)
    golden.check(text)
    assert "IMAGEGEN_REGISTRY_DOCKER_IO" in text
    assert "IMAGEGEN_INDEX_PYTORCH_CPU" in text
    assert "IMAGEGEN_GIT_127_0_0_1" in text


def test_one_fault_is_reported_as_itself(workspace: Wider) -> None:
    workspace.choose(workspace.bare.tree({"a": b""}), tell="3" * 40)
    with raises("fetch-git-tree-mismatch"):
        workspace.lock()


@pytest.mark.parametrize("how", ["commit", "sdist"])
def test_what_must_be_compiled_is_reported_by_name(how: str, workspace: Wider) -> None:
    if how == "commit":
        workspace.choose(workspace.bare.tree({"setup.py": b""}), compiled=True)
    else:
        (mine, *others) = workspace.cell.requirements
        component = replace(mine.component, compiled=True)
        workspace.index.sdist("mbridge", "0.15.1", {"setup.py": ""})
        workspace.index.wheel("mbridge", "0.15.1", tag="cp39-cp39-manylinux_2_28_x86_64")
        workspace.index.wheel("mbridge", "0.14")
        workspace.cell = replace(workspace.cell, requirements=(replace(mine, component=component, git=None), *others))
    with raises("lock-no-recipe"):
        workspace.lock()
    assert not workspace.built


def test_a_compiled_component_with_a_wheel_is_taken(workspace: Wider) -> None:
    (mine, *others) = workspace.cell.requirements
    component = replace(mine.component, compiled=True)
    workspace.index.wheel("mbridge", "0.15.1", tag="cp311-cp311-manylinux_2_28_x86_64")
    workspace.cell = replace(workspace.cell, requirements=(replace(mine, component=component, git=None), *others))
    assert source_of(workspace.lock()) is None


def edits(text: str) -> dict[str, str]:
    return {
        "kind": text.replace('kind = "registry"', 'kind = "debian"'),
        "suite": text.replace('kind = "registry"', 'kind = "registry"\nsuite = "bookworm"'),
        "digest": text.replace('\ndigest = "sha256:', '\ndigest = "sha256:0'),
        "media type": text.replace("+gzip", "+bzip2"),
        "variable": text.replace('env = ["PATH=', 'env = ["PATH'),
        "url": text.replace('url = "http://127.0.0.1', 'url = "http://example.com'),
        "url with a password": text.replace('url = "http://127.0.0.1', 'url = "https://me:pw@127.0.0.1'),
        "url of a file": text.replace('url = "http://127.0.0.1', 'url = "file:///127.0.0.1'),
        "option": text.replace('url = "http', 'url = "--upload-pack=x http'),
        "commit": text.replace('commit = "', 'commit = "g'),
        "tree": text.replace('tree = "', 'tree = "-'),
        "index": text.replace('index = "git"', 'index = "pypi"'),
        "two sources": text.replace("[wheel.git]", '[wheel.sdist]\nname = "mbridge"\n[wheel.git]'),
        "package": text.replace("[base]\n", '[base]\npackages = ["--purge"]\n'),
        "no layers": text.replace('  { media-type = "', '  # { media-type = "'),
    }  # fmt: skip


def test_edited_locks_are_refused(workspace: Wider) -> None:
    text = dumps(workspace.lock())
    for name, edited in edits(text).items():
        assert edited != text, name
        with pytest.raises(ImagegenError):
            loads(edited)


def test_the_first_lock_was_of_another_kind(workspace: Wider) -> None:
    assert workspace.first.base.kind == "debian"
    assert workspace.first.as_of == LATER
    assert "base.kind" in contradictions(workspace.first, workspace.cell)


def test_an_index_with_a_dot_in_its_name_has_a_variable() -> None:
    index = Index("vllm-0.26-cu129", "https://unused.invalid", "")
    name = package_index.variable(index.alias)
    assert name == "IMAGEGEN_INDEX_VLLM_0_26_CU129"
    env = {"HOME": "/x", name: "https://mirror.test", "UV_INDEX_VLLM_0_26_CU129_USERNAME": "me"}
    settings = Settings.from_environment(env)
    assert (
        package_index.url_of(index.alias, package_index.with_indexes(settings, {index.alias: index}))
        == "https://me:@mirror.test"
    )
