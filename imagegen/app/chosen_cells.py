"""Choose the cells that a command works on."""

from __future__ import annotations

from imagegen.app.session import Session
from imagegen.spec.model import Cell


def cells_by_index(session: Session, pattern: str, platforms: str | None) -> list[tuple[Cell, ...]]:
    """Return the selected cells one by one, or with `platforms` the cells of each index; see Matrix.select.

    Raises UsageError.
    """
    chosen = session.matrix.select(pattern)
    if platforms is None:
        return [(chosen_cell,) for chosen_cell in chosen]
    groups = [session.matrix.on_platforms(chosen_cell, platforms) for chosen_cell in chosen]
    return list({group[0].id: group for group in groups}.values())
