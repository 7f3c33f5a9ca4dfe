"""The states of cells as commands show them: from the matrix, the project's locks and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagegen.app.lock_files import LockFiles
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext
from imagegen.compat import CellAnswer
from imagegen.core.errors import LockError
from imagegen.core.store.cache import digest_of_results, has_results
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

if TYPE_CHECKING:
    from imagegen.run.smoke_reports import PassedSmokeReport
from imagegen.app.missing_sources import missing_of_cell, missing_of_lock
from imagegen.app.states import CellState, cell_state


def read_lock(lock_files: LockFiles, cell: Cell) -> Lock | LockError | None:
    """Return the cell's lock; the error where it cannot be read, since one broken lock must not hide other cells."""
    try:
        return lock_files.find(cell)
    except LockError as error:
        lock_files.project.progress.say(str(error))
        return LockError(f"its lock cannot be read: {error.what}", code="lock-malformed")


def state(lock_files: LockFiles, cell: Cell, answer: CellAnswer, locked: Lock | LockError | None) -> CellState:
    """Return the state of `cell`; `locked` is the result of `read_lock`. A lock counts if a build accepts it."""
    if not isinstance(locked, Lock):
        return cell_state(answer, locked)
    try:
        checked = lock_files.check(locked, cell)
        lock_files.require_unedited(checked, cell)
    except LockError as error:
        return cell_state(answer, error)
    if checked.verdict and checked.verdict.answer == "incompatible":
        errors = (conflict.rules for conflict in checked.verdict.conflicts if conflict.severity == "error")
        reasons = (rule.because for rules in errors for rule in rules)
        return cell_state(CellAnswer("incompatible", " ".join(reasons)))
    return cell_state(answer, locked, _passed_counts(lock_files, cell, locked))


def _passed_counts(lock_files: LockFiles, cell: Cell, locked: Lock) -> dict[str, int] | None:
    """Return the counts of `passed_smoke_report` by status, of a lock whose compiled wheels may be in the store.

    They are kept until the lock, the matrix, the code or a record of the store changes.
    """
    store = lock_files.project.store
    if not has_results(store, "smoke"):
        return None

    def compute() -> dict[str, int] | None:
        from imagegen.wheels.wheelhouse import with_local_wheels  # late: few cells get here

        report = passed_smoke_report(lock_files.project, cell, with_local_wheels(locked, store)[0])
        return dict(report.report["counts"]) if report else None

    inputs = lock_files.digest_of_inputs(locked, cell)
    records = [digest_of_results(store, kind) for kind in ("image", "smoke", "wheel")]
    return lock_files.project.results.of("smoke", str(lock_files.path(cell).absolute()), [inputs, *records], compute)


def lock_state(lock_files: LockFiles, cell: Cell, locked: Lock | LockError | None) -> str:
    """Return one word for the result of `read_lock`: "no", "broken", "stale", "edited", "yes", or "recorded"."""
    if not isinstance(locked, Lock):
        return "broken" if locked else "no"
    try:
        checked = lock_files.check(locked, cell)
    except LockError:
        return "edited"
    if checked.stale:
        return "stale"
    if checked.contradictions or checked.edited:
        return "edited"
    return "recorded" if locked.record else "yes"


def missing_here(matrices: Matrices, cell: Cell, state: CellState, locked: Lock | LockError | None) -> tuple[str, ...]:
    """Return the missing addresses that building the cell needs in addition to the default index and Debian.

    A lock counts if a build accepts it; without one, the declarations of the matrix count.
    """
    if state.name in ("locked", "tested") and isinstance(locked, Lock):
        return missing_of_lock(locked, matrices.project.store, matrices.project.settings)
    return missing_of_cell(cell, matrices.project.store, matrices.project.settings, matrices.wheel_catalogue)


def passed_smoke_report(project: ProjectContext, cell: Cell, locked: Lock) -> PassedSmokeReport | None:
    """Return this store's passed smoke report for the image of the lock, one with a GPU before one without."""
    from imagegen.image import layers
    from imagegen.run.smoke_reports import SmokeRequirement, find_saved

    digest = layers.built_digest(locked, project.store) or (locked.record.digest if locked.record else None)
    if digest is None:
        return None
    return find_saved(project.store, SmokeRequirement.of(digest, locked, cell.declarations, require_gpu=False))
