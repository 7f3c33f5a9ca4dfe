"""The private engine's own bookkeeping; that it starts and goes without a trace is an integration test."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import EngineError
from imagegen.core.progress import Quiet
from imagegen.run import embedded_engine


def test_an_engine_that_came_up_while_we_waited_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds on one machine: the second must not take down what the first has just started."""
    endpoint = embedded_engine.PrivateEngine("unix:///run/x.sock", tmp_path, tmp_path, tmp_path)
    answers = iter([None, endpoint])
    monkeypatch.setattr(embedded_engine, "running_endpoint", lambda _: next(answers))
    monkeypatch.setattr(embedded_engine, "_check_machine", lambda _: None)
    monkeypatch.setattr(embedded_engine, "_LOCK", tmp_path / "lock")
    monkeypatch.setattr(embedded_engine, "_stop", lambda *_: pytest.fail("the other's engine was stopped"))
    state = tmp_path / ".cache/imagegen/engine/state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"network": {"bridge": "igx", "subnet": "10.213.0.0/16", "forwarding": true}, "made": []}')
    assert embedded_engine.up(Settings.from_environment({"HOME": str(tmp_path)}), Quiet()) == endpoint


def test_the_lock_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_engine, "_LOCK", tmp_path / "lock")
    inside: list[int] = []

    def enter(number: int) -> None:
        with embedded_engine._lock(Quiet()):
            inside.append(number)
            assert inside == [number]
            time.sleep(0.01)
            inside.remove(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(enter, range(40)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("record", ["", "{", "[]", '{"network": {"bridge": 1}, "made": []}'])
def test_a_damaged_record_is_named(tmp_path: Path, record: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(record)
    with pytest.raises(EngineError) as caught:
        embedded_engine._read(path)
    assert caught.value.where == str(path)
    assert str(tmp_path) in (caught.value.fix or "")
