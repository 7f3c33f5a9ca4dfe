"""The project's own packages in locks: directories and wheel files. The sandbox is a stand-in here."""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
import zipfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.core.errors import LockError, SandboxError
from imagegen.core.store import Store
from imagegen.image.layers.plan import plan
from imagegen.lock import contradictions, dumps, loads, require_own_packages
from imagegen.lock.model import LOCAL, Lock, LockedWheel
from imagegen.spec.model import Component, OwnSource, Requirement
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.lock_workspace import Workspace
from tests.support.package_index import Index, Offer, metadata

PLACE = "matrices/my.yaml:5:21"
PYPROJECT = """\
[project]
name = "mypkg"
version = "{version}"
dependencies = {requires}
[build-system]
requires = ["backend>=1"]
build-backend = "backend"
"""


def wheel_bytes(version: str, requires: Iterable[str] = (), source: str = "") -> bytes:
    """Return a wheel of mypkg; equal arguments give equal bytes."""
    lines = ["Metadata-Version: 2.1", "Name: mypkg", f"Version: {version}"]
    metadata = "\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires)])
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"mypkg-{version}.dist-info/METADATA"), metadata)
        archive.writestr(zipfile.ZipInfo("mypkg.py"), source)
    return body.getvalue()


class OwnWorkspace(Workspace):
    """A workspace whose cell has packages of the project."""

    def own(self, kind: str, path: str, name: str = "mypkg") -> None:
        """Let the cell require the project's package."""
        component = Component(name, name, "", (), declared=False)
        source = OwnSource(kind, path, PLACE)  # type: ignore[arg-type]
        required = replace(Requirement(component, "", "own", "pypi"), own=source)
        others = [each for each in self.cell.requirements if each.component.name != name]
        self.cell = replace(self.cell, requirements=(required, *others))

    def write(self, path: str, version: str = "0.1", requires: list[str] | None = None, source: str = "x = 1") -> None:
        """Write a package of the project."""
        folder = self.project / path
        (folder / "src").mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(PYPROJECT.format(version=version, requires=requires or []))
        (folder / "src/mypkg.py").write_text(source)

    def wheel_file(self, path: str, *requires: str) -> None:
        """Write a wheel of mypkg 1.0."""
        target = self.project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(wheel_bytes("1.0", requires))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnWorkspace:
    made = OwnWorkspace(tmp_path)
    made.index.wheel("backend", "1.0")
    made.project.mkdir()

    class StandInSandbox:
        """Gives the wheel that the pyproject.toml and the source of the archive describe."""

        def __init__(self, rootfs: Path, *, read_only: dict[str, Path], memory: int) -> None:
            archive = next(path for name, path in read_only.items() if name.endswith(".tar"))
            self.text = archive.read_bytes()

        def run(self, argv: list[str], **more: object) -> bytes:
            begin = self.text.index(b"[project]")
            table = tomllib.loads(self.text[begin : self.text.index(b"\0", begin)].decode())["project"]
            source = self.text[-2048:].rstrip(b"\0").decode()
            wheel = wheel_bytes(table["version"], table["dependencies"], source)
            return f"mypkg-{table['version']}-py3-none-any.whl\n".encode() + wheel

    monkeypatch.setattr("imagegen.lock.sdist.Sandbox", StandInSandbox)
    monkeypatch.setattr("imagegen.image.base.rootfs", lambda *args: tmp_path)
    return made


def own_wheel(lock: Lock) -> LockedWheel:
    return next(wheel for wheel in lock.wheels if wheel.name == "mypkg")


def test_a_directory_becomes_a_wheel_of_the_lock(workspace: OwnWorkspace) -> None:
    workspace.write("packages/mypkg", requires=["peft"])
    workspace.own("path", "packages/mypkg")
    lock = workspace.make()
    wheel = own_wheel(lock)
    assert (wheel.version, wheel.file.index, wheel.requires) == ("0.1", LOCAL, ("peft",))
    assert wheel.sdist
    assert [each.name for each in wheel.sdist.build_requires] == ["backend"]
    assert next(each for each in lock.wheels if each.name == "peft").via == ("mypkg",)
    assert loads(dumps(lock)) == lock
    assert contradictions(replace(lock, cell=workspace.cell.id), workspace.cell) == ()
    assert str(workspace.project) not in dumps(lock)


def test_another_machine_makes_the_same_lock(workspace: OwnWorkspace, tmp_path: Path) -> None:
    workspace.write("mypkg")
    workspace.own("path", "mypkg")
    lock = workspace.make()
    workspace.store = Store(tmp_path / "second")
    workspace.project.rename(tmp_path / "elsewhere")
    workspace.project = tmp_path / "elsewhere"
    assert workspace.make() == lock


def test_an_edit_is_locked_without_an_index(workspace: OwnWorkspace) -> None:
    workspace.write("mypkg", requires=["peft"])
    workspace.own("path", "mypkg")
    lock = workspace.make()
    require_own_packages(lock, workspace.cell, workspace.project, workspace.store)
    workspace.write("mypkg", requires=["peft"], source="x = 2")
    with pytest.raises(LockError) as stale:
        require_own_packages(lock, workspace.cell, workspace.project, workspace.store)
    assert (stale.value.code, stale.value.where) == ("lock-source-changed", PLACE)
    assert "src/mypkg.py" in str(stale.value.why)
    workspace.env["PIP_INDEX_URL"] = "http://127.0.0.1:1/simple"
    edited = workspace.make(lock)
    before, after = own_wheel(lock), own_wheel(edited)
    assert before.file.sha256 != after.file.sha256
    assert replace(edited, wheels=tuple(before if each is after else each for each in edited.wheels)) == lock
    require_own_packages(edited, workspace.cell, workspace.project, workspace.store)
    assert [part.key for part in plan(edited)][:-1] == [part.key for part in plan(lock)][:-1]
    assert [part.name for part in plan(edited)][-1] == "project"


def test_an_edit_of_the_requirements_is_resolved(workspace: OwnWorkspace) -> None:
    workspace.write("mypkg")
    workspace.own("path", "mypkg")
    lock = workspace.make()
    workspace.index.wheel("extra", "1.0")
    workspace.write("mypkg", requires=["extra"])
    assert "extra" in {wheel.name for wheel in workspace.make(lock).wheels}


def test_the_projects_locks_and_matrices_are_no_source(workspace: OwnWorkspace) -> None:
    workspace.write(".")
    workspace.own("path", ".")
    lock = workspace.make()
    for folder in ("locks", "matrices"):
        (workspace.project / folder).mkdir()
        (workspace.project / folder / "x.toml").write_text("")
    require_own_packages(lock, workspace.cell, workspace.project, workspace.store)


def test_a_wheel_file_is_needed_where_the_store_lacks_it(workspace: OwnWorkspace, tmp_path: Path) -> None:
    path = "wheels/mypkg-1.0-py3-none-any.whl"
    workspace.wheel_file(path, "peft")
    workspace.own("wheel", path)
    lock = workspace.make()
    wheel = own_wheel(lock)
    assert (wheel.version, wheel.file.index, wheel.sdist, wheel.requires) == ("1.0", LOCAL, None, ("peft",))
    assert loads(dumps(lock)) == lock
    assert workspace.store.has(wheel.file.digest, wheel.file.size)
    (workspace.project / path).unlink()
    require_own_packages(lock, workspace.cell, workspace.project, workspace.store)
    with raises("lock-own-invalid"):
        require_own_packages(lock, workspace.cell, workspace.project, Store(tmp_path / "empty"))
    workspace.wheel_file(path)
    with raises("lock-source-changed"):
        require_own_packages(lock, workspace.cell, workspace.project, workspace.store)


@pytest.mark.parametrize(
    ("kind", "path", "code"),
    [
        ("path", "absent", "lock-own-invalid"),
        ("path", "plain", "lock-own-invalid"),
        ("path", "outside", "lock-own-invalid"),
        ("path", "leaving", "fetch-git-tree-invalid"),
        ("path", "malformed", "lock-pyproject-malformed"),
        ("path", "unmeetable", "lock-unresolvable"),
        ("wheel", "absent.whl", "lock-own-invalid"),
        ("wheel", "mypkg-2.0-py3-none-any.whl", "lock-own-invalid"),
        ("wheel", "other-1.0-py3-none-any.whl", "lock-own-invalid"),
        ("wheel", "mypkg-1.0-cp39-cp39-win_amd64.whl", "lock-no-wheel"),
        ("wheel", "odd.whl", "lock-own-invalid"),
    ],
)
def test_a_source_that_gives_no_package_is_named_with_its_line(
    kind: str, path: str, code: str, workspace: OwnWorkspace, tmp_path: Path
) -> None:
    (workspace.project / "plain").mkdir()
    (tmp_path / "outside").mkdir()
    (workspace.project / "outside").symlink_to(tmp_path / "outside")
    for name in ("leaving", "malformed", "unmeetable"):
        workspace.write(name)
    (workspace.project / "leaving/link").symlink_to("/etc/passwd")
    (workspace.project / "malformed/pyproject.toml").write_text("[build-system]\nrequires = [1]\n")
    (workspace.project / "unmeetable/pyproject.toml").write_text("[build-system]\nrequires = ['backend>1']\n")
    if kind == "wheel" and not path.startswith("absent"):
        workspace.wheel_file(path)
    workspace.own(kind, path)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the code says which
        workspace.make()
    error = caught.value
    assert (getattr(error, "code", None), getattr(error, "where", None)) == (code, PLACE)


@pytest.mark.fault(
    "Source builds",
    "a package of the project requires torch, or a wheel of 155 MB, for its build",
    "refused with the line of the matrix and a recipe, before anything is fetched",
)
@pytest.mark.parametrize(
    ("requires", "sizes", "named"),
    [
        (["backend", "torch"], {"torch": None}, "torch"),  # an index without sizes, whose server gives one
        (["backend", "torch"], {"torch": 858_000_000}, "torch"),
        (["backend", "triton==3.4.0"], {"triton": 155_000_000}, "triton"),
        (["backend", "accelerator"], {"accelerator": 1000, "torch": 858_000_000, "nvidia": 10**9}, "accelerator"),
    ],
)
def test_a_large_build_requirement_is_refused_before_it_is_fetched(
    requires: list[str], sizes: dict[str, int | None], named: str, workspace: OwnWorkspace
) -> None:
    needs = {"accelerator": ["torch"], "torch": ["nvidia"] if "nvidia" in sizes else []}
    with closing(Index()) as index:
        for name, size in {"backend": 1000, **sizes}.items():
            version = "3.4.0" if name == "triton" else "1.0"
            filename = f"{name}-{version}-py3-none-any.whl"
            beside = index.beside(filename, metadata(name, version, *needs.get(name, [])))
            sha256 = hashlib.sha256(filename.encode()).hexdigest()  # uv tells files apart by it
            offer = Offer(filename, "2026-11-01T00:00:00Z", metadata_sha256=beside, sha256=sha256, size=size)
            index.page(name, offer, as_json=True)
            index.wheel(filename, b"no wheel")  # of which only the size can be asked for
        workspace.env["PIP_INDEX_URL"] = index.url
        workspace.write("packages/mypkg")
        text = (workspace.project / "packages/mypkg/pyproject.toml").read_text()
        text = text.replace('["backend>=1"]', json.dumps(requires))
        (workspace.project / "packages/mypkg/pyproject.toml").write_text(text)
        workspace.own("path", "packages/mypkg")
        with raises("sandbox-build-requirement-large", where=PLACE) as caught:
            workspace.make()
        fetched = [path for method, path, _ in index.requested if method == "GET" and path.endswith(".whl")]
    assert fetched == []
    error = caught.value
    assert f"mypkg requires {named}" in error.what
    recipe = workspace.project / "wheels/mypkg.yaml"
    recipe.parent.mkdir()
    assert error.fix
    recipe.write_text(error.fix.partition("compiled:\n")[2])
    loaded = matrix.load([shipped("matrices"), recipe.parent])
    release = loaded.recipes["mypkg"].releases["0.1"]
    assert release.path == workspace.project / "packages/mypkg"  # type: ignore[union-attr]


TRACEBACK = """\
creating build/lib
Traceback (most recent call last):
  File "<string>", line 50, in main
  File "/usr/lib/python3.11/zipfile.py", line 1677, in extractall
    self._extract_member(zipinfo, path, pwd)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/tmp/site/backend.py", line 1, in build_wheel
    exec(code)
{own}OSError: [Errno 27] File too large
"""
OWN = '  File "/tmp/source/mypkg/setup.py", line 3, in <module>\n    setup()\n'


@pytest.mark.parametrize("own", ["", OWN])
def test_a_failed_build_shows_only_frames_of_the_sources(
    own: str, workspace: OwnWorkspace, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def run(*arguments: object, **more: object) -> bytes:
        raise SandboxError("it failed", code="sandbox-program-failed", why=TRACEBACK.format(own=own).strip())

    monkeypatch.setattr("imagegen.lock.sdist.Sandbox.run", run)
    workspace.write("mypkg")
    workspace.own("path", "mypkg")
    with raises("sandbox-sdist-failed", where=PLACE) as caught:
        workspace.make()
    golden.check(caught.value)
