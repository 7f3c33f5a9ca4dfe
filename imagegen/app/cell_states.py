"""The states of cells as commands show them: from the matrix, the project's locks and the store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from imagegen.app.lock_files import LockFiles
from imagegen.app.missing_sources import missing_of_cell, missing_of_lock
from imagegen.app.session import Session
from imagegen.app.states import CellState, cell_state
from imagegen.compat.verdict import CellAnswer, reasons_of
from imagegen.core.errors import LockError
from imagegen.core.store import Store
from imagegen.core.store.cache import digest_of_results, has_results
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.run.smoke.passed import PassedSmokeReport


class CellStatus:
    """A cell with the answer of rules and metadata. Its lock, state and missing files are examined at first use."""

    def __init__(self, session: Session, cell: Cell, answer: CellAnswer) -> None:
        self._session, self.cell, self.answer = session, cell, answer

    @cached_property
    def lock(self) -> Lock | LockError | None:
        """The cell's lock, as `read_lock` returns it."""
        return read_lock(self._session.lock_files, self.cell)

    @cached_property
    def state(self) -> CellState:
        """The state of the cell. A lock counts if a build accepts it."""
        if not isinstance(self.lock, Lock):
            return cell_state(self.answer, self.lock)
        try:
            checked = self._session.lock_files.check(self.lock, self.cell)
            self._session.lock_files.require_unedited(checked, self.lock, self.cell)
        except LockError as error:
            return cell_state(self.answer, error)
        if checked.verdict and checked.verdict.answer == "incompatible":
            return cell_state(CellAnswer("incompatible", reasons_of("incompatible", checked.verdict.conflicts)))
        return cell_state(self.answer, self.lock, _passed_counts(self._session.lock_files, self.cell, self.lock))

    @property
    def lock_state(self) -> str:
        """One word about the lock: "no", "broken", "stale", "edited", "yes", or "recorded"."""
        if not isinstance(self.lock, Lock):
            return "broken" if self.lock else "no"
        try:
            checked = self._session.lock_files.check(self.lock, self.cell)
        except LockError:
            return "edited"
        if checked.stale:
            return "stale"
        if checked.contradictions or checked.edited:
            return "edited"
        return "recorded" if self.lock.record else "yes"

    @property
    def missing(self) -> tuple[str, ...]:
        """The missing addresses that building the cell needs in addition to the default index and Debian.

        A lock counts if a build accepts it; without one, the declarations of the matrix count.
        """
        project = self._session.project
        if self.state.name in ("locked", "tested") and isinstance(self.lock, Lock):
            return missing_of_lock(self.lock, project.store, project.settings)
        return missing_of_cell(self.cell, project.store, project.settings, self._session.matrices.wheel_catalogue)


def statuses(session: Session, cells: Sequence[Cell]) -> list[CellStatus]:
    """Return the statuses of the cells."""
    answers = session.judge.cell_answers(cells)
    return [CellStatus(session, cell, answers[cell.id]) for cell in cells]


def read_lock(lock_files: LockFiles, cell: Cell) -> Lock | LockError | None:
    """Return the cell's lock, or the error if it cannot be read, since one broken lock must not hide other cells."""
    try:
        return lock_files.find(cell)
    except LockError as error:
        lock_files.project.progress.say(str(error))
        return LockError(f"its lock cannot be read: {error.what}", code="lock-malformed")


def _passed_counts(lock_files: LockFiles, cell: Cell, locked: Lock) -> dict[str, int] | None:
    """Return the counts of `passed_smoke_report` by status, of a lock whose compiled wheels may be in the store.

    They are kept until the lock, the matrix, the code or a record of the store changes.
    """
    store = lock_files.project.store
    if not has_results(store, "smoke"):
        return None

    def compute() -> dict[str, int] | None:
        from imagegen.wheels.wheelhouse import with_local_wheels  # late: few cells get here

        report = passed_smoke_report(store, cell, with_local_wheels(locked, store)[0])
        return dict(report.report["counts"]) if report else None

    inputs = lock_files.digest_of_inputs(locked, cell)
    records = [digest_of_results(store, kind) for kind in ("image", "smoke", "wheel")]
    return lock_files.project.results.of("smoke", str(lock_files.path(cell).absolute()), [inputs, *records], compute)


def passed_smoke_report(store: Store, cell: Cell, locked: Lock) -> PassedSmokeReport | None:
    """Return the store's passed smoke report for the image of the lock, one with a GPU before one without."""
    from imagegen.image import layers
    from imagegen.run.smoke.passed import SmokeRequirement, find_saved

    digest = layers.built_digest(locked, store) or (locked.record.digest if locked.record else None)
    if digest is None:
        return None
    return find_saved(store, SmokeRequirement.of(digest, locked, cell.declarations, require_gpu=False))
