"""`imagegen lock` about what is compiled, of a project with a single cell, without a resolution."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.app import make_locks as lock_use_case
from imagegen.app.lock_files import LockFiles
from imagegen.cli import lock_command
from imagegen.cli.app import App
from imagegen.core import git
from imagegen.lock.builds import keyed
from imagegen.lock.model import LOCAL, Lock, LockedFile
from imagegen.spec.recipe import LocalSource
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.source_builds import BUILD, RECIPE, WITH_BUILD
from tests.support.wheelhouse_machine import Machine, app_of


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "")


def locked_directory(here: Machine, folder: Path) -> Lock:
    """A lock with a build from `folder`, as it is now."""
    archive = git.pack(folder, "demo-ext-1.0", here.store)
    source = LockedFile("demo_ext-1.0.tar", archive.size, archive.digest.removeprefix("sha256:"), LOCAL)
    return replace(WITH_BUILD, builds=(replace(BUILD, source=source),))


def app_with(here: Machine, folder: Path, locked: Lock) -> App:
    app = app_of(here, locked)
    (cell,) = app.session.matrix.cells()
    cell.recipes = {BUILD.name: replace(RECIPE, releases={"1.0": LocalSource(folder)})}  # type: ignore[misc]
    return app


def test_sources_on_this_disk_are_compared(here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "demo-ext"
    folder.mkdir()
    (folder / "setup.py").write_text("1")
    app = app_with(here, folder, locked_directory(here, folder))
    assert "fresh" in here.run(lock_command.command, "demo", "--check", app=app)[2]
    (folder / "setup.py").write_text("2")
    with raises("lock-source-changed") as caught:
        here.run(lock_command.command, "demo", "--check", app=app)
    assert caught.value.why == "1 file changed (setup.py)"
    monkeypatch.setattr(LockFiles, "require_sound", lambda *_: None)
    monkeypatch.setattr(lock_use_case, "resolve_cell", lambda *_: pytest.fail("made anew"))
    with pytest.raises(pytest.fail.Exception, match="made anew"):
        here.run(lock_command.command, "demo", "--record", app=app)


def test_what_will_be_compiled_is_named_with_the_next_command(
    here: Machine, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    build = keyed(BUILD, WITH_BUILD)
    monkeypatch.setattr(lock_use_case, "resolve_cell", lambda *_: replace(WITH_BUILD, builds=(build,)))
    code, out, said = here.run(lock_command.command, "demo", "--json", app=app_of(here))
    assert code == 0
    golden.check(said)
    (result,) = json.loads(out)
    assert result["builds"] == [{"name": "demo-ext", "version": "1.0", "key": build.key}]
    monkeypatch.setattr(lock_use_case, "resolve_cell", lambda *_: replace(WITH_BUILD, builds=()))
    code, out, said = here.run(lock_command.command, "demo", "--json", app=app_of(here, WITH_BUILD))
    golden.check(said)
    assert json.loads(out)[0]["builds"] == []


def test_changes_without_a_name_are_refused(here: Machine) -> None:
    with raises("usage-name-missing"):
        here.run(lock_command.command, "demo", "--add", "math-verify", app=app_of(here))
