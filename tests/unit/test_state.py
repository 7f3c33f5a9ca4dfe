"""The state of a cell: one word out of five, and the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen import lock
from imagegen.app.states import MEANINGS, CellState, cell_state
from imagegen.compat import CellAnswer
from imagegen.core.errors import LockError
from imagegen.lock.model import Lock
from tests.support.matrix_samples import shipped_matrix
from tests.support.shipped_locks import shipped_lock

FREE = CellAnswer("compatible")
REFUSED = CellAnswer("incompatible", "torch 2.0 cannot go with numpy 2.")
DOUBTED = CellAnswer("unknown", "Nothing is known of vllm 99.")
PASSED = {"pass": 9, "skip": 0, "fail": 0, "crash": 0}
BROKEN = LockError("its lock cannot be read")


LOCK = shipped_lock("cpu-grpo-cpu-py311")
CELL = next(cell for cell in shipped_matrix().all_cells if cell.id == LOCK.cell)


@pytest.mark.parametrize(
    ("answer", "locked", "tests", "state"),
    [
        (FREE, None, None, "no known conflict"),
        (FREE, LOCK, None, "locked"),
        (FREE, LOCK, PASSED, "tested"),
        (FREE, BROKEN, None, "no known conflict"),
        (DOUBTED, None, None, "unknown"),
        (DOUBTED, LOCK, None, "locked"),
        (DOUBTED, LOCK, PASSED, "tested"),
        (REFUSED, LOCK, PASSED, "conflict"),
    ],
)
def test_one_state_out_of_five(
    answer: CellAnswer, locked: Lock | LockError | None, tests: dict[str, int] | None, state: str
) -> None:
    found = cell_state(answer, locked, tests)
    assert found.name == state
    assert found.name in MEANINGS


def test_the_reason_of_the_state_is_the_reason_of_the_refusal() -> None:
    assert cell_state(REFUSED).reason == REFUSED.reason
    assert cell_state(FREE, BROKEN).reason == BROKEN.what
    assert cell_state(DOUBTED, BROKEN).reason == f"{DOUBTED.reason} {BROKEN.what}"
    assert cell_state(FREE, LOCK) == CellState("locked")
    assert cell_state(FREE, LOCK, PASSED) == CellState("tested")
    assert "2 of 9" in cell_state(FREE, LOCK, {"pass": 7, "skip": 2}).reason


def test_a_lock_that_a_build_refuses_says_why() -> None:
    assert not lock.stale(LOCK, CELL)
    assert not lock.contradictions(LOCK, CELL)
    moved = lock.stale(replace(LOCK, inputs={**LOCK.inputs, "base": "other"}), CELL)
    assert moved == ("base",)
    stale = lock.outdated(CELL, moved, (), "lock.toml")
    assert (stale.code, stale.where) == ("lock-stale", "lock.toml")
    wrong = lock.contradictions(replace(LOCK, image="other"), CELL)
    assert "image" in wrong
    assert lock.outdated(CELL, (), wrong, "lock.toml").code == "lock-contradicts-matrix"
