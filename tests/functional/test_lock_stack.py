"""A cell whose packages a lock file of the project says: uv.lock and pylock.toml; no index, no network."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uv
from packaging.requirements import Requirement
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from imagegen.app.assemble import assemble_image
from imagegen.app.lock_files import LockFiles
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError, Location, LockError
from imagegen.core.net import Missing, MissingFiles
from imagegen.core.progress import Quiet
from imagegen.image.layers import ResolvedLayers
from imagegen.lock import contradictions, dumps, sdist, stale
from imagegen.lock.file import loads
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.stages import LockRequest, lock_cell
from imagegen.lock.model import URL, Lock, LockedFile, LockedSdist
from imagegen.lock.stack import read_stack
from imagegen.lock.uv_resolve import UPLOADS
from imagegen.spec.model import Cell, Component, StackFile
from imagegen.spec.model import Requirement as Asked
from tests.support.lock_workspace import Workspace
from tests.support.matrix_samples import SMALL, complaint, load

PYPROJECT = """\
[project]
name = "app"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["tool", "torch", "old; sys_platform == 'win32'"]
[project.optional-dependencies]
plus = ["more"]
[dependency-groups]
dev = ["more"]
"""
OTHER = "torch-2.13.0%2Bcpu-cp310-cp310-linux_x86_64.whl"
PYPI = PYPI_SIMPLE_ENDPOINT.rstrip("/")
TOOL = "https://mirror.example.org/packages/tool-2.0-py3-none-any.whl"
TORCH = "torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
UV_LOCK = f"""\
version = 1
revision = 3
requires-python = ">=3.11"
[[package]]
name = "app"
version = "1.0"
source = {{ virtual = "." }}
dependencies = [
    {{ name = "tool" }},
    {{ name = "torch" }},
    {{ name = "old", marker = "sys_platform == 'win32'" }},
]
[package.optional-dependencies]
plus = [{{ name = "more" }}]
[package.dev-dependencies]
dev = [{{ name = "more" }}]
[package.metadata]
requires-dist = [
    {{ name = "more", marker = "extra == 'plus'" }},
    {{ name = "old", marker = "sys_platform == 'win32'" }},
    {{ name = "tool" }},
    {{ name = "torch" }},
]
provides-extras = ["plus"]
[package.metadata.requires-dev]
dev = [{{ name = "more" }}]
[[package]]
name = "more"
version = "3.0"
source = {{ registry = "{PYPI}" }}
wheels = [{{ url = "https://files.example.org/more-3.0-py3-none-any.whl", hash = "sha256:{"5" * 64}", size = 8 }}]
[[package]]
name = "old"
version = "1.0"
source = {{ registry = "{PYPI}" }}
wheels = [{{ url = "https://files.example.org/old-1.0-py3-none-any.whl", hash = "sha256:{"6" * 64}" }}]
[[package]]
name = "tool"
version = "2.0"
source = {{ registry = "https://mirror.example.org/simple" }}
wheels = [{{ url = "{TOOL}", hash = "sha256:{"2" * 64}", size = 7, upload-time = "2026-07-03T23:30:00Z" }}]
[[package]]
name = "torch"
version = "2.13.0+cpu"
source = {{ registry = "https://download.example.org/whl/cpu" }}
wheels = [
    {{ url = "https://files.example.org/{OTHER}", hash = "sha256:{"3" * 64}" }},
    {{ url = "https://files.example.org/{TORCH}", hash = "sha256:{"1" * 64}" }},
]
"""
PYLOCK = f"""\
lock-version = "1.0"
created-by = "test"
requires-python = ">=3.11"
[[packages]]
name = "old"
version = "1.0"
marker = "sys_platform == 'win32'"
wheels = [{{ url = "https://files.example.org/old-1.0-py3-none-any.whl", hashes = {{ sha256 = "{"6" * 64}" }} }}]
[[packages]]
name = "tool"
version = "2.0"
index = "https://mirror.example.org/simple"
wheels = [{{ url = "{TOOL}", upload-time = 2026-07-03T23:30:00Z, size = 7, hashes = {{ sha256 = "{"2" * 64}" }} }}]
[[packages]]
name = "torch"
version = "2.13.0+cpu"
index = "https://download.example.org/whl/cpu"
wheels = [
    {{ url = "https://files.example.org/{OTHER}", hashes = {{ sha256 = "{"3" * 64}" }} }},
    {{ url = "https://files.example.org/{TORCH}", hashes = {{ sha256 = "{"1" * 64}" }} }},
]
"""
FILES = {"uv": ("uv.lock", UV_LOCK), "pylock": ("pylock.toml", PYLOCK)}
WHERE = Location("matrices/x.yaml", 7)


class Project:
    """A project with a lock file, and a workspace whose index must not be asked."""

    def __init__(self, root: Path) -> None:
        (root / "below").mkdir()
        self.below = Workspace(root / "below")
        self.root = root / "project"
        self.root.mkdir()
        self.said: list[str] = []
        (self.root / "pyproject.toml").write_text(PYPROJECT)

    def cell(self, kind: str = "uv", *components: str, **chosen: tuple[str, ...]) -> Cell:
        name = FILES[kind][0]
        stack = StackFile(kind, name, chosen.get("extras", ()), chosen.get("groups", ()), WHERE)  # type: ignore[arg-type]
        asked = tuple(Asked(Component(each, each, "", ()), "", f"why {each}", "pypi") for each in components)
        return replace(self.below.cell, requirements=asked, stack=stack)

    def lock(self, cell: Cell, text: str | None = None, previous: Lock | None = None) -> Lock:
        assert cell.stack
        name, written = FILES[cell.stack.kind]
        (self.root / name).write_text(text or written)

        class Recorder(Quiet):
            say = staticmethod(self.said.append)

        env = self.below.env | {"PIP_INDEX_URL": "https://mirror.example.org/simple"}
        context = Context(self.below.store, Settings.from_environment(env), Recorder())
        stack = read_stack(cell.stack, self.root)
        first = previous or replace(self.below.first, inputs=dict(cell.inputs))
        return lock_cell(LockRequest(cell, LockOptions(), (), self.below.chooser, context, {}, stack), first)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    def build(name: str, version: str, source: LockedSdist, workshop: sdist.SdistBuilder) -> LockedFile:
        return LockedFile(f"{name}-{version}-py3-none-any.whl", 1, source.file.sha256, source.file.index)

    monkeypatch.setattr(sdist, "build", build)
    return Project(tmp_path)


@pytest.mark.parametrize("kind", ["uv", "pylock"])
def test_the_lock_holds_what_the_file_says(project: Project, kind: str) -> None:
    cell = project.cell(kind, "tool")
    lock = project.lock(cell)
    found = {wheel.name: wheel for wheel in lock.wheels}
    assert {name: wheel.version for name, wheel in found.items()} == {"tool": "2.0", "torch": "2.13.0+cpu"}
    url = f"https://files.example.org/{TORCH}"
    assert found["torch"].file == LockedFile(TORCH.replace("%2B", "+"), None, "1" * 64, URL, url=url)
    hint = "packages/tool-2.0-py3-none-any.whl"
    assert found["tool"].file == LockedFile("tool-2.0-py3-none-any.whl", 7, "2" * 64, "pypi", hint)
    assert found["tool"].because == "why tool"
    assert loads(dumps(lock)) == lock
    assert "mirror.example.org" not in dumps(lock)
    assert (stale(lock, cell), contradictions(lock, cell)) == ((), ())
    assert project.lock(cell, previous=lock) == lock
    days = {name: UPLOADS.get(project.below.store, wheel.file.digest) for name, wheel in found.items()}
    assert days == {"tool": "2026-07-03", "torch": None}


@pytest.mark.parametrize("options", [[], ["--extra", "plus"], ["--group", "dev"]])
def test_the_lock_equals_the_export_of_uv_hash_by_hash(project: Project, options: list[str]) -> None:
    extras, groups = (tuple(options[1:]) if options[:1] == [key] else () for key in ("--extra", "--group"))
    lock = project.lock(project.cell(extras=extras, groups=groups))
    command = [
        uv.find_uv_bin(),
        "export",
        "--frozen",
        "--offline",
        "--no-default-groups",
        "--no-emit-project",
        *options,
    ]
    env = {"PATH": os.defpath, "HOME": str(project.root), "UV_NO_CONFIG": "1"}
    text = subprocess.run(command, cwd=project.root, env=env, capture_output=True, text=True, check=True).stdout
    theirs = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement = Requirement(line.partition(" --hash")[0].strip())
            if not requirement.marker or requirement.marker.evaluate():
                hashes = set(re.findall(r"--hash=sha256:(\w+)", line))
                theirs[requirement.name] = (str(requirement.specifier), hashes)
    assert {each.name: f"=={each.version}" for each in lock.wheels} == {name: has[0] for name, has in theirs.items()}
    assert all(each.file.sha256 in theirs[each.name][1] for each in lock.wheels)


def test_a_component_of_several_versions_is_the_one_that_the_project_requires(project: Project) -> None:
    other = '[[package]]\nname = "tool"\nversion = "1.0"\nsource = { registry = "' + PYPI + '" }\n'
    text = UV_LOCK.replace(
        '{ name = "tool" },\n    { name = "torch" }', '{ name = "tool", version = "2.0" },\n    { name = "torch" }'
    )
    lock = project.lock(project.cell("uv", "tool"), text + other)
    assert {each.name: each.version for each in lock.wheels}["tool"] == "2.0"


def test_a_default_group_of_uv_that_the_image_lacks_is_reported(project: Project) -> None:
    project.lock(project.cell())
    assert any("dev" in each for each in project.said)
    project.said.clear()
    project.lock(project.cell(groups=("dev",)))
    assert not [each for each in project.said if each.startswith("uv.lock")]


def test_a_member_is_reported_and_left_out(project: Project) -> None:
    lock = project.lock(project.cell(), UV_LOCK.replace("virtual", "editable"))
    assert "app" not in {each.name for each in lock.wheels}
    assert any("app" in each for each in project.said)


def test_an_sdist_that_no_component_declares_is_built(project: Project) -> None:
    index = project.below.index
    index.sdist("tool", "2.0", {"pyproject.toml": "[build-system]\nrequires = []\n"})
    file = index.root / "tool" / "tool-2.0.tar.gz"
    sha256 = re.findall("sha256=([0-9a-f]{64})", (index.root / "tool/index.html").read_text())[-1]
    (project.root / "links").mkdir()
    file.rename(project.below.links / file.name)
    wheel = re.search(r"wheels = \[\{ url = \"https://mirror.*", UV_LOCK)
    assert wheel
    address = f"https://mirror.example.org/packages/{file.name}"
    text = UV_LOCK.replace(wheel[0], f'sdist = {{ url = "{address}", hash = "sha256:{sha256}" }}')
    (tool,) = (each for each in project.lock(project.cell(), text).wheels if each.name == "tool")
    assert tool.sdist and tool.sdist.file.sha256 == sha256
    assert "mirror.example.org" not in dumps(project.lock(project.cell(), text))


@pytest.mark.parametrize(
    ("kind", "old", "new", "code", "line"),
    [
        ("uv", "cp311-cp311", "cp313-cp313", "lock-no-wheel", "torch"),
        ("uv", f', hash = "sha256:{"2" * 64}"', "", "lock-no-hash", "tool"),
        ("uv", f"sha256:{'2' * 64}", f"md5:{'2' * 32}", "lock-no-hash", "tool"),
        ("uv", "version = 1\n", "version = 2\n", "lock-uv-lock-malformed", None),
        ("uv", ">=3.11", ">=3.12", "lock-uv-lock-mismatch", None),
        ("pylock", "cp311-cp311", "cp313-cp313", "project-mismatch", None),
        ("pylock", "url = ", "path = ", "project-malformed", None),
        ("pylock", 'lock-version = "1.0"', 'lock-version = "2.0"', "project-malformed", None),
    ],
)
def test_a_file_that_does_not_answer_the_cell(
    project: Project, kind: str, old: str, new: str, code: str, line: str | None
) -> None:
    text = FILES[kind][1].replace(old, new)
    with pytest.raises(ImagegenError) as caught:
        project.lock(project.cell(kind), text)
    assert caught.value.code == code
    if line:
        assert isinstance(caught.value.where, Location)
        number = caught.value.where.line
        assert number and text.splitlines()[number] == f'name = "{line}"'


@pytest.mark.parametrize(("component", "specifier"), [("numpy", ""), ("tool", "<2")])
def test_a_component_that_the_file_does_not_have(project: Project, component: str, specifier: str) -> None:
    cell = project.cell("uv", component)
    cell = replace(cell, requirements=tuple(replace(each, specifier=specifier) for each in cell.requirements))
    with pytest.raises(LockError) as caught:
        project.lock(cell)
    assert caught.value.code == "lock-stack-mismatch"


def test_another_file_makes_the_lock_stale(project: Project) -> None:
    cell = project.cell()
    lock = project.lock(cell)
    assert cell.stack
    read_stack(cell.stack, project.root).require_unchanged(lock, cell)
    for old, new in (('version = "2.0"', 'version = "2.1"'), ("1" * 64, "4" * 64), ('    { name = "tool" },\n', "")):
        (project.root / "uv.lock").write_text(UV_LOCK.replace(old, new))
        with pytest.raises(LockError) as caught:
            read_stack(cell.stack, project.root).require_unchanged(lock, cell)
        assert (caught.value.code, caught.value.where) == ("lock-stale", WHERE)


def test_a_file_outside_of_the_project_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(UV_LOCK)
    (project.root / "uv.lock").symlink_to(tmp_path / "uv.lock")
    stack = project.cell().stack
    assert stack
    with pytest.raises(LockError):
        read_stack(stack, project.root)


def test_the_stack_of_an_image(tmp_path: Path) -> None:
    text = SMALL.replace("    gpus: [sm_90]", "    stack: {uv: ./uv.lock, extras: [b, a]}\n    gpus: [sm_90]")
    (cell,) = load(tmp_path, text).select("small")
    assert cell.stack and (cell.stack.kind, cell.stack.path, cell.stack.extras) == ("uv", "uv.lock", ("a", "b"))
    assert cell.stack.where.line == text.splitlines().index("    stack: {uv: ./uv.lock, extras: [b, a]}") + 1
    child = text.replace("systems:\n", "  child: {extends: small}\nsystems:\n")
    (tmp_path / "child").mkdir()
    assert load(tmp_path / "child", child).select_one("child").stack == cell.stack


@pytest.mark.parametrize("stack", ["{}", "{uv: a, pylock: b}", "{uv: ../uv.lock}", "{uv: /etc/passwd}"])
def test_a_stack_that_names_no_file_of_the_project(tmp_path: Path, stack: str) -> None:
    assert complaint(tmp_path, SMALL.replace("    gpus: [sm_90]", f"    stack: {stack}\n    gpus: [sm_90]"))


def test_a_file_with_another_hash_is_reported_at_the_line_that_names_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = project.cell("pylock")
    lock = project.lock(cell)
    torch = next(each for each in lock.wheels if each.name == "torch").file

    def ensure_layers(*_: object) -> None:
        raise MissingFiles([Missing(torch.filename, torch.sha256, ("the server sends other bytes",), "")], Path())

    monkeypatch.setattr("imagegen.image.layers.resolve_layers", lambda *_: ResolvedLayers(lock, ()))
    monkeypatch.setattr("imagegen.image.layers.ensure_layers", ensure_layers)
    context = SimpleNamespace(store=None, progress=Quiet(), directory=project.root, context_for=lambda _: None)
    with pytest.raises(MissingFiles) as raised:
        assemble_image(cast("LockFiles", SimpleNamespace(project=context)), cell, lock, audit=False)
    place = raised.value.where
    assert isinstance(place, Location)
    assert Path(place.file).name == "pylock.toml"
    assert "1" * 64 in PYLOCK.splitlines()[(place.line or 0) - 1]
