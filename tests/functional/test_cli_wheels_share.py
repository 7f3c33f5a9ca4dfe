"""`imagegen wheels push` and `pull` against the stand-in of registry_server_writes.py, and `store gc` beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagegen.cli import store_command, wheels_command
from imagegen.cli.app import App
from imagegen.core.errors import PublishError
from imagegen.oci.documents import digest_of
from imagegen.wheels.wheelhouse import every, keep, known
from tests.support.built_wheels import KEY, LOG, age, built
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.registry_server_writes import Writable, answering
from tests.support.wheelhouse_machine import Machine

OTHER = digest_of(b"another key")


@pytest.fixture
def registry() -> Iterator[Writable]:
    server = Writable()
    yield server
    server.close()


@pytest.fixture
def here(registry: Writable, tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "here", f"{registry.host}/team/wheels")
    for key, name in ((KEY, "demo"), (OTHER, "flash-attn")):
        wheel = built(machine.store, key, name.encode(), name.replace("-", "_"))
        keep(machine.store, type(wheel)(**{**vars(wheel), "name": name}))
    return machine


@pytest.fixture
def there(registry: Writable, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "there", f"{registry.host}/team/wheels")


def test_all_that_is_kept_goes_there_once(registry: Writable, here: Machine, golden: Golden) -> None:
    code, _, said = here.run(wheels_command.push_wheels, "--dry-run")
    assert code == 0
    golden.check(said)
    assert {method for method, _ in registry.requested} == {"GET", "HEAD"}
    code, _, said = here.run(wheels_command.push_wheels)
    assert "demo-1.0-py3-none-any.whl (4 B): pushed" in said
    registry.requested.clear()
    code, out, said = here.run(wheels_command.push_wheels, "--json")
    assert code == 0
    assert said.count("already there") == 2
    assert [(each["name"], each["key"], each["pushed"]) for each in json.loads(out)] == [
        ("demo", KEY, False), ("flash-attn", OTHER, False),
    ]  # fmt: skip
    assert {method for method, _ in registry.requested} == {"GET", "HEAD"}


@pytest.mark.parametrize("pattern", ["flash*", OTHER, OTHER[:20] + "*", OTHER.removeprefix("sha256:")])
def test_those_that_are_named(pattern: str, registry: Writable, here: Machine) -> None:
    here.run(wheels_command.push_wheels, pattern, "--to", f"{registry.host}/others")
    pushed = [path.rpartition("/")[2] for path in registry.documents if "/others/manifests/sha256-" in path]
    assert pushed == [OTHER.replace(":", "-")]


def test_names_that_nothing_has(here: Machine, golden: Golden) -> None:
    with raises("usage-unknown-wheel") as caught:
        here.run(wheels_command.push_wheels, "flash-atn")
    golden.check(caught.value)
    for command in (wheels_command.push_wheels, wheels_command.pull_wheels):
        with raises("usage-no-wheelhouse"):
            Machine(here.root, "").run(command, "demo")
        with raises("usage-no-repository"):
            Machine(here.root, "ghcr.io/a:b").run(command, "demo")
    with raises("usage-nothing-named"):
        here.run(wheels_command.pull_wheels)
    with raises("usage-invalid-value"):
        here.run(wheels_command.pull_wheels, "demo")


def test_pulled_by_key(here: Machine, there: Machine, golden: Golden) -> None:
    here.run(wheels_command.push_wheels)
    code, out, said = there.run(wheels_command.pull_wheels, KEY, "--json")
    assert (code, json.loads(out)) == (0, {KEY: "pulled"})
    assert known(there.store, KEY) == known(here.store, KEY)
    code, _, said = there.run(wheels_command.pull_wheels, KEY, OTHER.removeprefix("sha256:"))
    assert code == 0
    golden.check(said)
    assert "1 wheel pulled" in said
    code, _, said = there.run(wheels_command.pull_wheels, digest_of(b"a third"))
    assert code == 1
    assert "not found" in said


def locked(machine: Machine, *builds: tuple[str, str, str]) -> App:
    """Return an app whose only cell has a lock with these builds: name, version, key."""
    app = machine.app
    vars(app.session.matrices)["matrix"] = SimpleNamespace(select=lambda pattern, **_: [pattern])
    found = [SimpleNamespace(name=name, version=version, key=key) for name, version, key in builds]
    app.session.lock_files.fresh = lambda cell: SimpleNamespace(builds=found)  # type: ignore[method-assign, assignment, return-value]
    return app


def test_pulled_for_a_cell(here: Machine, there: Machine, golden: Golden) -> None:
    here.run(wheels_command.push_wheels)
    app = locked(there, ("demo", "1.0", KEY), ("flash-attn", "1.0", OTHER), ("apex", "0.1", digest_of(b"apex")))
    code, _, said = there.run(wheels_command.pull_wheels, "--cell", "train", app=app)
    assert code == 1
    golden.check(said)
    assert "flash-attn 1.0: pulled" in said
    assert len(list(every(there.store))) == 2


def test_another_version_under_the_key_of_a_cell(here: Machine, there: Machine) -> None:
    here.run(wheels_command.push_wheels)
    with raises("fetch-digest-mismatch"):
        there.run(wheels_command.pull_wheels, "--cell", "train", app=locked(there, ("demo", "2.0", KEY)))
    assert not list(every(there.store))


@pytest.mark.parametrize("status", [403, 405])
def test_a_wheelhouse_that_may_not_be_written_to(
    status: int, registry: Writable, here: Machine, golden: Golden
) -> None:
    registry.faults.append(answering(status, "POST", "PUT"))
    with pytest.raises(PublishError) as caught:
        here.run(wheels_command.push_wheels)
    golden.check(caught.value)


def test_gc_and_check_know_the_wheelhouse(here: Machine, golden: Golden) -> None:
    untrusted = here.store.write(b"unsigned")
    age(here.store)
    app = here.app
    vars(app.session.matrices)["matrix"] = SimpleNamespace(cells=list)
    here.run(store_command.command, "gc", app=app)
    assert not here.store.path(untrusted).exists()
    wheel = known(here.store, KEY)
    assert wheel and here.store.has(digest_of(LOG))
    here.store.path(wheel.digest).chmod(0o644)
    here.store.path(wheel.digest).write_bytes(b"?")
    code, _, said = here.run(store_command.command, "check", app=app)
    assert code == 1
    golden.check(said)
