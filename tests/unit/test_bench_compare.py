"""bench/compare.py: what can be wrong with it before a minute has passed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from imagegen import lock
from tests.support.matrix_samples import shipped_matrix
from tests.support.shipped_locks import NAMES, shipped_lock


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("compare")


@pytest.mark.parametrize("name", NAMES)
def test_a_sibling_lacks_small_packages_and_none_that_the_matrix_asks_for(name: str, compare: ModuleType) -> None:
    whole = shipped_lock(name)
    if not whole.record:
        return  # never built
    (cell,) = shipped_matrix().select(name)
    sibling = compare._sibling(whole)
    assert len(whole.wheels) - len(sibling.wheels) == 3
    assert not lock.contradictions(sibling, cell)
    assert compare.PIN in {wheel.name for wheel in sibling.wheels}


@pytest.mark.parametrize("name", ["compare", "publish"])
def test_a_way_that_is_not_known_is_refused_at_once(
    name: str, compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = compare if name == "compare" else importlib.import_module(name)
    monkeypatch.setattr(program, "App", None)  # nothing is begun
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--ways", "pip,nope"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "nope" in error
    assert all(way in error for way in program.WAYS)
