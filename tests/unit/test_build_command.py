"""`imagegen build`: what it leaves behind for a publish."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from imagegen.app.build import BuiltImage
from imagegen.app.lock_files import LockFiles
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext
from imagegen.checks.smoke.table import applicable
from imagegen.cli import build_command
from imagegen.cli.app import App
from imagegen.core.errors import LockError
from imagegen.engine import Engine
from imagegen.lock import read
from imagegen.lock.model import Lock
from imagegen.run.smoke import runner as smoke_checks
from imagegen.run.smoke.passed import SmokeRequirement, find_saved
from imagegen.run.smoke.report import CheckResult, SmokeReport
from imagegen.run.smoke.runner import parts
from imagegen.spec.model import Cell, ConfigField, Declarations
from tests.support.environment import environment
from tests.support.errors import raises

LOCK = read(Path(__file__).parents[2] / "locks" / "cpu-grpo-cpu-py311.toml")
IMAGE = "sha256:" + "1" * 64
PLATFORMS = {"": "linux/amd64", "-linux-arm64": "linux/arm64"}  # end of the cell's id -> platform
INFO = {"ID": "one", "ServerVersion": "28.5.2", "KernelVersion": "6.1", "Runtimes": {"runc": {}}}
DECLARED = Declarations({"torch": ("torch",)})
CELL = cast("Cell", SimpleNamespace(id=LOCK.cell, image=LOCK.image, declarations=DECLARED, gpus=()))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """Its engine builds and checks nothing: all checks of the image pass where they are asked for."""

    @contextmanager
    def connect(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(
            docker_run_line=lambda *words, own_entrypoint: f"{own_entrypoint=} {' '.join(words)}",
            image_digest=lambda _: IMAGE,
            tag=lambda *_: None,
            info=lambda: INFO,
        )

    def run(*_: Any, **__: Any) -> SmokeReport:
        checks = applicable(parts(LOCK))
        return SmokeReport(IMAGE, LOCK.cell, tuple(CheckResult(each.name, "pass", 0.1) for each in checks))

    monkeypatch.setattr(Engine, "connect", connect)
    monkeypatch.setattr("imagegen.run.smoke.runner.run", run)
    monkeypatch.setattr("imagegen.app.assemble.ensure_wheels", lambda _, __, lock, **___: lock)
    monkeypatch.setattr("imagegen.app.audit.audit_before_image", lambda *_: None)
    monkeypatch.setattr("imagegen.image.layers.built_digest", lambda *_: IMAGE)
    monkeypatch.setattr(Matrices, "matrix", SimpleNamespace(select=lambda _, **__: (CELL,)))
    monkeypatch.setattr(LockFiles, "fresh", lambda *_: LOCK)
    monkeypatch.setattr(ProjectContext, "settings_for", lambda self, _: self.settings)
    return App(environment(tmp_path), tmp_path)


def build(app: App, *more: str) -> str:
    ended = CliRunner().invoke(build_command.command, (LOCK.image, *more), obj=app, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def required(declared: Declarations) -> SmokeRequirement:
    return SmokeRequirement.of(IMAGE, LOCK, declared, require_gpu=False)


def test_a_build_that_passed_proves_its_image_to_publish(app: App) -> None:
    build(app, "--no-test")
    assert find_saved(app.project.store, required(DECLARED)) is None
    build(app)
    found = find_saved(app.project.store, required(DECLARED))
    assert found
    assert json.loads(json.dumps(found.report))["passed"] is True
    assert find_saved(app.project.store, required(Declarations())) is None, "other modules are to be imported"


def test_checks_that_passed_in_this_engine_do_not_run_again(
    app: App, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("imagegen.run.smoke.report.nvidia_devices", list)
    checks, runs, good = smoke_checks.run, [], ["pass"]

    def run(*_: Any, **options: Any) -> SmokeReport:
        runs.append(options["require_gpu"])
        report = checks(*_, **options)
        return replace(report, results=(*report.results, CheckResult("more", good[-1], 0.1)))

    printed = []

    def ran(*more: str) -> int:
        printed.append(build(app, *more) + capfd.readouterr().err)
        return len(runs)

    monkeypatch.setattr("imagegen.run.smoke.runner.run", run)
    assert ran() == 1
    assert ran() == 1
    assert [bool(re.search(r"tested \d+ s ago; --retest", text)) for text in printed] == [False, True]
    assert json.loads(build(app, "--json").partition("[")[2].join(["[", ""]))[0]["report"]["passed"] is True
    assert ran("--retest") == 2
    for name, value in {"ID": "two", "KernelVersion": "6.2", "Runtimes": {"runc": {}, "nvidia": {}}}.items():
        with monkeypatch.context() as patch:
            patch.setitem(INFO, name, value)
            before = len(runs)
            assert ran() == before + 1, name
            assert ran() == before + 1, name
    with monkeypatch.context() as patch:
        patch.setattr("imagegen.run.smoke.report.nvidia_devices", lambda: ["nvidia0"])
        before = len(runs)
        assert ran() == before + 1
    with monkeypatch.context() as patch:  # a failure is not kept
        patch.setitem(INFO, "ID", "three")
        good.append("fail")
        for _ in range(2):
            before = len(runs)
            with raises("smoke-failed"):
                build(app)
            assert len(runs) == before + 1
    with raises("usage-option-conflict"):
        build(app, "--no-test", "--retest")


def test_the_printed_command_replaces_an_entry_point_of_the_lock(
    app: App, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = replace(LOCK, config=(ConfigField("entrypoint", ("python", "-m", "http.server"), "."),))
    printed = []
    for locked in (LOCK, own):
        monkeypatch.setattr(LockFiles, "fresh", lambda *_, locked=locked: locked)
        printed.append(build(app, "--no-test") + capfd.readouterr().err)
    assert ["own_entrypoint=True" in text for text in printed] == [False, True]


def test_cells_of_several_platforms_are_one_layout(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = tuple(SimpleNamespace(id=f"{CELL.id}{more}", platform=each) for more, each in PLATFORMS.items())
    requested = []

    def on_platforms(cell: Cell, platforms: str) -> tuple[Any, ...]:
        requested.append((cell.id, platforms))
        return cells

    def build_layout(_: Any, cells: Any, directory: Path, *__: Any, **___: Any) -> tuple[BuiltImage, ...]:
        requested.append(directory)
        return tuple(BuiltImage(f"sha256:{number}", index=IMAGE) for number, _ in enumerate(cells))

    monkeypatch.setattr(Matrices, "matrix", SimpleNamespace(select=lambda _, **__: (CELL,), on_platforms=on_platforms))
    monkeypatch.setattr(build_command, "build_layout", build_layout)
    arguments = ("--platform", "all", "--output", f"oci:{tmp_path / 'both'}")
    assert build(app, *arguments).split()[-1] == IMAGE
    assert requested == [(CELL.id, "all"), tmp_path / "both"]
    entries = json.loads(build(app, *arguments, "--json").partition("[")[2].join(["[", ""]))
    assert {each["cell"]: (each["digest"], each["index"]) for each in entries} == {
        cell.id: (f"sha256:{number}", IMAGE) for number, cell in enumerate(cells)
    }

    def fresh_lock(_: App, cell: Cell) -> Lock:
        if cell.id.endswith("arm64"):
            raise LockError("stale", code="lock-stale")
        return LOCK

    monkeypatch.setattr(LockFiles, "fresh", fresh_lock)
    requested.clear()
    with raises("lock-stale"):
        build(app, *arguments)
    assert requested == [(CELL.id, "all")], "nothing is built"
