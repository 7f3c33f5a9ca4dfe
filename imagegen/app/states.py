"""The state of a cell, in one word and a reason, the same in all outputs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from imagegen.compat import CellAnswer
from imagegen.core.deferred import dataclass
from imagegen.core.errors import LockError
from imagegen.core.text import counted
from imagegen.lock.model import Lock

StateName = Literal["tested", "locked", "no known conflict", "conflict", "unknown"]

MEANINGS: dict[StateName, str] = {
    "tested": "The smoke tests passed in exactly the image that the lock gives.",
    "locked": "Every version and file is pinned; no passed smoke test of the image is recorded here.",
    "no known conflict": "Rules and package metadata accept it; whether it resolves shows when it is locked.",
    "conflict": "Rules or package metadata reject it.",
    "unknown": "Rules and package metadata do not decide it.",
}


@dataclass(frozen=True)
class CellState:
    name: StateName
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else self.name


def cell_state(
    answer: CellAnswer, lock: Lock | LockError | None = None, tests: Mapping[str, int] | None = None
) -> CellState:
    """Return the state of a cell.

    `answer` is the answer of rules and metadata. `lock` is the cell's lock, or why a build refuses it.
    `tests` counts the smoke checks of a report that passed in the image of this lock, by status.
    """
    if answer.answer == "incompatible":
        return CellState("conflict", answer.reason)
    if isinstance(lock, Lock):
        return CellState("locked") if tests is None else CellState("tested", _skipped(tests))
    reason = " ".join(filter(None, (answer.reason, lock.what if lock else "")))
    return CellState("unknown" if answer.answer == "unknown" else "no known conflict", reason)


def _skipped(tests: Mapping[str, int]) -> str:
    skipped = tests.get("skip")
    return f"{skipped} of {counted(sum(tests.values()), 'smoke check')} were skipped." if skipped else ""
