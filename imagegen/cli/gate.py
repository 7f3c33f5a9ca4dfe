"""The audit that stands before an image, for the commands that make one."""

from __future__ import annotations

from imagegen.app import pipeline
from imagegen.cli.app import App
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell


def gate(app: App, cell: Cell, *, no_audit: bool) -> pipeline.Gate:
    """Raises AuditError where the audit finds errors; with `no_audit`, says that nobody has looked."""

    def audited(lock: Lock) -> None:
        if no_audit:
            app.progress.say(f"NOTE: {cell.id} is not audited (--no-audit): nobody has looked at what its files need.")
            app.progress.say(f"NOTE: `imagegen audit {cell.id}` does, and says what will not work.")
        else:
            pipeline.audited(lock, cell, app.store, app.sources(cell), app.progress)

    return audited
