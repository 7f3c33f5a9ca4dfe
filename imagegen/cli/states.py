"""The states of cells as commands show them: from the matrix, the project's locks and the store."""

from __future__ import annotations

from imagegen.app import missing
from imagegen.cli.app import App
from imagegen.core.errors import LockError
from imagegen.image import layers
from imagegen.plan import lock
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.plan.rules import CellAnswer, evaluate_cell, facts_of_lock
from imagegen.plan.state import CellState, cell_state
from imagegen.supply.publish.attachments import SmokeAttestation, SmokeRequirement, find_saved
from imagegen.wheels import builds


def read_lock(app: App, cell: Cell) -> Lock | LockError | None:
    """Return the cell's lock; the error where it cannot be read, since one broken lock must not hide other cells."""
    try:
        return app.find_lock(cell)
    except LockError as error:
        app.progress.say(str(error))
        return LockError(f"its lock cannot be read: {error.what}", code="lock-malformed")


def state(app: App, cell: Cell, answer: CellAnswer, locked: Lock | LockError | None) -> CellState:
    """Return the state of `cell`; `locked` is what `read_lock` returned. A lock counts that a build accepts."""
    if not isinstance(locked, Lock):
        return cell_state(answer, locked)
    try:
        lock.require_fresh(locked, cell, str(app.lock_path(cell)))
        app.require_unedited(locked, cell)
    except LockError as error:
        return cell_state(answer, error)
    verdict = evaluate_cell(app.matrix.rules, cell, facts_of_lock(locked, cell.base.glibc))
    if verdict.answer == "incompatible":
        errors = (conflict.rules for conflict in verdict.conflicts if conflict.severity == "error")
        reasons = (rule.because for rules in errors for rule in rules)
        return cell_state(CellAnswer("incompatible", " ".join(reasons)))
    found = smoke_attestation(app, cell, builds.with_local_wheels(locked, app.store)[0])
    return cell_state(answer, locked, found.report["counts"] if found else None)


def lock_state(app: App, cell: Cell, found: Lock | LockError | None) -> str:
    """Return one word for the result of `read_lock`: "no", "broken", "stale", "edited", "yes", or "recorded"."""
    if not isinstance(found, Lock):
        return "broken" if found else "no"
    if lock.stale(found, cell):
        return "stale"
    try:
        if lock.contradictions(found, cell):
            return "edited"
        app.require_unedited(found, cell)
    except LockError:
        return "edited"
    return "recorded" if found.record else "yes"


def missing_here(app: App, cell: Cell, state: CellState, locked: Lock | LockError | None) -> tuple[str, ...]:
    """Return the addresses that building the cell needs beside the default index and Debian, and that are not here.

    A lock counts that a build accepts; without one, what the matrix names counts.
    """
    if state.name in ("locked", "tested") and isinstance(locked, Lock):
        return missing.of_lock(locked, app.store, app.settings)
    return missing.of_cell(cell, app.store, app.settings, app.wheel_catalogue)


def smoke_attestation(app: App, cell: Cell, locked: Lock) -> SmokeAttestation | None:
    """Return this store's passed smoke report for the image of the lock, one with a GPU before one without."""
    digest = layers.built_digest(locked, app.store) or (locked.record.digest if locked.record else None)
    if digest is None:
        return None
    return find_saved(app.store, SmokeRequirement.of(digest, locked, cell.declarations, require_gpu=False))
