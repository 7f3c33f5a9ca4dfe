"""`imagegen wheels list`, `gc` and `build`, as far as they go without a compiler, and the group that holds them all."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, Mock

import click
import pytest

from imagegen.cli import (
    build_command,
    render_command,
    wheels_command,
)
from imagegen.core.errors import BuildError, EngineError, UsageError
from imagegen.engine import Engine
from imagegen.image import folder
from imagegen.lock.builds import BuiltWheel
from imagegen.lock.model import Lock
from imagegen.oci.documents import digest_of
from imagegen.wheels import wheelhouse
from imagegen.wheels.builds.environment import BuildEnvironment
from tests.support.command_line import Run
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.registry_server_writes import Writable
from tests.support.source_builds import BUILD, WITH_BUILD
from tests.support.wheelhouse_machine import Machine, app_of

MONTHS = 60 * 24 * 3600  # seconds


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "")


def keep(here: Machine, name: str, age: float = 0.0, key: str | None = None, log: str = "a log") -> BuiltWheel:
    """A wheel that was made and last used `age` seconds ago."""
    store = here.store
    sha256 = store.write(name.encode()).removeprefix("sha256:")
    record = {
        "torch": "2.11.0",
        "python": "3.11",
        "architectures": ["9.0", "12.0"],
        "made": time.time() - age,
        "log": store.write(log.encode()),
    }
    filename = f"{name.replace('-', '_')}-1.0-cp311-cp311-linux_x86_64.whl"
    wheel = BuiltWheel(key or digest_of(name.encode()), name, "1.0", filename, sha256, len(name), record)
    wheelhouse.keep(store, wheel)
    os.utime(store.path(wheel.digest), (time.time() - age,) * 2)
    return wheel


def test_a_list_says_what_each_wheel_is_for(here: Machine, golden: Golden) -> None:
    code, out, said = here.run(wheels_command.list_wheels)
    assert (code, out) == (0, "")
    golden.check(said)
    keep(here, "flash-attn", age=3 * 24 * 3600 + 60)
    new = keep(here, "demo")
    code, out, _ = here.run(wheels_command.list_wheels)
    head, first, second = (line.split() for line in out.splitlines())
    assert head == ["wheel", "version", "torch", "python", "GPUs", "size", "made", "key"]
    assert first == ["demo", "1.0", "2.11.0", "3.11", "9.0", "12.0", "4", "B", "just", "now", new.key]
    assert second[:1] + second[-4:-1] == ["flash-attn", "3", "days", "ago"]
    wheels = json.loads(here.run(wheels_command.list_wheels, "--json")[1])
    assert [wheel["name"] for wheel in wheels] == ["demo", "flash-attn"]
    assert wheels[0]["key"] == new.key


def test_a_record_that_says_nothing_is_listed_too(here: Machine) -> None:
    wheel = keep(here, "demo")
    wheelhouse.forget(here.store, wheel.key)
    wheelhouse.keep(here.store, replace(wheel, record={"architectures": 3, "made": "long ago"}))
    _, out, _ = here.run(wheels_command.list_wheels)
    assert out.splitlines()[1].split() == ["demo", "1.0", "-", "-", "-", "4", "B", "-", wheel.key]


@pytest.mark.parametrize("made", [float("-inf"), float("nan"), 10**400, -1])
def test_text_from_a_foreign_record_is_escaped(here: Machine, made: float) -> None:
    wheel = keep(here, "demo")
    wheelhouse.forget(here.store, wheel.key)
    wheelhouse.keep(here.store, replace(wheel, record={"torch": "\x1b[2J", "made": made}))
    _, out, _ = here.run(wheels_command.list_wheels)
    assert out.splitlines()[1].split() == ["demo", "1.0", "\\x1b[2J", "-", "-", "4", "B", "-", wheel.key]


def test_gc_removes_unneeded_and_unused_wheels(here: Machine, golden: Golden) -> None:
    old, young = keep(here, "old", age=MONTHS), keep(here, "young")
    needed = keep(here, "demo-ext", age=MONTHS, key=BUILD.key)
    app = app_of(here, WITH_BUILD)
    _, _, said = here.run(wheels_command.remove_wheels, "--dry-run", app=app)
    assert f"old-1.0-cp311-cp311-linux_x86_64.whl (3 B), {old.key}" in said
    golden.check(said)
    assert here.store.path(old.digest).exists()
    _, _, said = here.run(wheels_command.remove_wheels, app=app)
    golden.check(said)
    assert [wheel.key for wheel in wheelhouse.every(here.store)] == [needed.key, young.key]
    assert not here.store.path(old.digest).exists()
    _, out, _ = here.run(wheels_command.remove_wheels, "--json", app=app)
    assert json.loads(out) == {"wheels": [], "freed": 0, "dry_run": False}


def test_looking_at_a_list_is_no_use_of_a_wheel(here: Machine) -> None:
    keep(here, "old", age=MONTHS)
    here.run(wheels_command.list_wheels)
    _, _, said = here.run(wheels_command.remove_wheels, "--dry-run", app=app_of(here))
    assert "1 wheel" in said


@pytest.mark.parametrize("name", ["demo-ext", "demo-ext==1.0", BUILD.key])
def test_gc_lets_go_of_what_is_named(here: Machine, name: str, golden: Golden) -> None:
    other, wheel = keep(here, "other", log="another"), keep(here, "demo-ext", key=BUILD.key)
    _, _, said = here.run(wheels_command.remove_wheels, "--dry-run", name, app=app_of(here, WITH_BUILD))
    golden.check(said)
    _, _, said = here.run(wheels_command.remove_wheels, name, app=app_of(here, WITH_BUILD))
    golden.check(said)
    assert list(wheelhouse.every(here.store)) == [other]
    assert wheelhouse.known(here.store, wheel.key) is None


def test_gc_of_an_unknown_name_removes_nothing(here: Machine, golden: Golden) -> None:
    keep(here, "flash-attn")
    with raises("usage-unknown-wheel") as caught:
        here.run(wheels_command.remove_wheels, "flash-attn", "flash-atn", app=app_of(here))
    golden.check(caught.value)
    assert len(list(wheelhouse.every(here.store))) == 1


def test_build_has_nothing_to_do_where_the_wheel_is_there(here: Machine, golden: Golden) -> None:
    wheel = keep(here, "demo-ext", key=BUILD.key)
    app = app_of(here, WITH_BUILD)
    code, out, said = here.run(wheels_command.build_wheels, "--cell", "tiny", app=app)
    assert (code, out) == (0, f"{BUILD.key} {wheel.filename}\n")
    golden.check(said)
    _, out, _ = here.run(wheels_command.build_wheels, "demo-ext", "--cell", "tiny", "--json", app=app)
    assert [each["filename"] for each in json.loads(out)] == [wheel.filename]


def test_build_refuses_what_the_lock_does_not_have_compiled(here: Machine, golden: Golden) -> None:
    app = app_of(here, WITH_BUILD)
    with pytest.raises(UsageError) as caught:
        here.run(wheels_command.build_wheels, "demo-exx", "--cell", "tiny", app=app)
    golden.check(caught.value)
    none = replace(WITH_BUILD, builds=())
    code, out, said = here.run(wheels_command.build_wheels, "--cell", "tiny", app=app_of(here, none))
    assert (code, out) == (0, "")
    golden.check(said)


def test_a_command_of_the_group_that_is_not_there(run: Run, golden: Golden) -> None:
    ended = run("wheels", "biuld")
    assert ended.code == 64
    golden.check(ended.err)
    assert "Remove wheels" in run("wheels", "--help").out


def test_what_the_team_has_compiled_is_not_compiled_again(tmp_path: Path, golden: Golden) -> None:
    registry = Writable()
    try:
        place = f"{registry.host}/team/wheels"
        giver, taker = Machine(tmp_path / "giver", place), Machine(tmp_path / "taker", place)
        wheel = keep(giver, "demo-ext", key=BUILD.key)
        giver.run(wheels_command.push_wheels)
        code, out, said = taker.run(wheels_command.build_wheels, "--cell", "tiny", app=app_of(taker, WITH_BUILD))
    finally:
        registry.close()
    assert (code, out) == (0, f"{BUILD.key} {wheel.filename}\n")
    golden.check(said)
    assert wheelhouse.known(taker.store, BUILD.key) == wheel


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (build_command.command, ("--builder", "far")),
        (build_command.command, ("--output", "oci:image", "--builder", "far")),
        (wheels_command.build_wheels, ("--builder", "far")),
    ],
)
def test_a_builder_of_the_users_is_the_one_that_compiles(
    here: Machine, monkeypatch: pytest.MonkeyPatch, command: click.Command, arguments: tuple[str, ...]
) -> None:
    used = []

    def compile_all(lock: Lock, required: object, cell: object, gpus: object, bench: BuildEnvironment) -> None:
        used.append(bench.builder)
        raise BuildError("enough")

    engine = MagicMock()
    monkeypatch.setattr(Engine, "connect", lambda *_: engine)
    monkeypatch.setattr("imagegen.wheels.builds.ensure.compile_all", compile_all)
    app = app_of(here, WITH_BUILD)
    cell = ("--cell", WITH_BUILD.cell) if command is wheels_command.build_wheels else (WITH_BUILD.cell,)
    with pytest.raises(BuildError, match="enough"):
        here.run(command, *cell, *arguments, app=app)
    assert used == ["far"]


def test_a_rendered_folder_that_compiles_says_how_many_files_at_once(
    here: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(folder, "write", lambda *_: None)
    monkeypatch.setattr("imagegen.app.render.Engine.connect", Mock(side_effect=EngineError("no engine")))
    for lock, expected in ((WITH_BUILD, 1), (replace(WITH_BUILD, builds=()), 0)):
        app = app_of(here, lock)
        code, out, said = here.run(render_command.command, lock.cell, "-o", str(tmp_path), app=app)
        assert code == 0
        notes = [
            line for line in said.splitlines() if "for demo-ext 1.0, the printed command compiles one file" in line
        ]
        assert len(notes) == expected
        golden.check(notes)
        assert "throttle" not in out
