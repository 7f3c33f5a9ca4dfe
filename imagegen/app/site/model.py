"""The data of a report, before it becomes pages. Nothing here reads a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagegen.app.site.history import History
from imagegen.image.layers import Size
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.plan.rules import Row
from imagegen.plan.state import CellState

Smoke = Mapping[str, Any]  # as smoke.Report.as_dict has it
Audit = Mapping[str, Any]  # as audit.report.Report.as_dict has it


@dataclass(frozen=True)
class Sheet:
    """A locked cell with everything that its report page shows.

    `smoke` and `audit` are None where no report of that tool is in this store.
    """

    cell: Cell
    lock: Lock
    stale: tuple[str, ...]  # inputs that moved since the lock was made
    layers: tuple[Size, ...]
    history: History
    smoke: Smoke | None
    audit: Audit | None
    tag: str  # what a build here calls it
    remote: tuple[str, ...] = ()  # where it is published: by the first tag that moves, and by the one that never does


@dataclass(frozen=True)
class Report:
    """`rows` are the cells in the matrix's order, `states` their states by id.

    `others` are locks of cells that the report leaves out: their images may share layers with these.
    """

    rows: tuple[Row, ...]
    states: Mapping[str, CellState]
    sheets: tuple[Sheet, ...]
    others: tuple[Lock, ...] = ()
    descriptions: Mapping[str, str] = field(default_factory=dict)  # of images, where a cell's own would mislead
