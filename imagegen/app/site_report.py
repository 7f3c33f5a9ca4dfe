"""The data of a report, before it becomes pages. Nothing here reads a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from imagegen.app.lock_history import History
from imagegen.app.packages import LockedPackage
from imagegen.app.states import CellState
from imagegen.app.unlocked import UnlockedCell
from imagegen.compat.rule import Rule
from imagegen.image.layers import Size
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

Smoke = Mapping[str, Any]  # as smoke.SmokeReport.as_dict has it
Audit = Mapping[str, Any]  # as audit.report.AuditReport.as_dict has it


@dataclass(frozen=True)
class CellReport:
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
    tag: str  # the tag of a local build
    remote: tuple[str, ...] = ()  # its published references: by the first mutable tag, and by the immutable tag
    downloads: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)  # title -> file name, content


@dataclass(frozen=True)
class SiteReport:
    """`cells` are in the matrix's order, `states` are their states by id.

    Each cell is in `sheets` or in `unlocked`. `others` are locks of cells that the report leaves out: their images may
    share layers with these.
    """

    cells: tuple[Cell, ...]
    states: Mapping[str, CellState]
    sheets: tuple[CellReport, ...]
    unlocked: tuple[UnlockedCell, ...] = ()
    others: tuple[Lock, ...] = ()
    packages: tuple[LockedPackage, ...] = ()  # of the locks of `sheets`
    descriptions: Mapping[str, str] = field(default_factory=dict)  # of images, if a cell's own would mislead
    unconfirmed: tuple[Rule, ...] = ()  # rules whose last check is more than six months old
    defaults: Collection[str] = ()  # ids of the default cells of images
