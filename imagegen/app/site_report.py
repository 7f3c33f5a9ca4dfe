"""The data of a report, before it becomes pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagegen import lock
from imagegen.app import cell_states, lock_history
from imagegen.app.audit import audit_report
from imagegen.app.launch import published_repository
from imagegen.app.lock_history import History
from imagegen.app.packages import LockedPackage, packages_of
from imagegen.app.publisher import expected_digest
from imagegen.app.session import Session
from imagegen.app.states import CellState
from imagegen.app.unlocked import UnlockedCell, nearest
from imagegen.audit.model import Licence
from imagegen.compat import unconfirmed
from imagegen.compat.rule import Rule
from imagegen.core.errors import PublishError
from imagegen.image import dockerfile, layers
from imagegen.image.layers import Size
from imagegen.lock import local_tags
from imagegen.lock.model import Lock
from imagegen.publish.tags import TagInput, tags
from imagegen.spec.model import Cell
from imagegen.trust.known_licences import stored_licences, with_system
from imagegen.trust.sbom import sbom
from imagegen.wheels.wheelhouse import with_local_wheels

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


def read_report(session: Session, cells: Sequence[Cell]) -> SiteReport:
    """Return the report about cells; nothing is fetched for it."""
    store, matrix = session.project.store, session.matrix
    read = {cell.id: cell_states.read_lock(session.lock_files, cell) for cell in matrix.all_cells}
    locks = {name: locked for name, locked in read.items() if isinstance(locked, Lock)}
    statuses = cell_states.statuses(session, cells)
    for status in statuses:
        status.lock = read[status.cell.id]
    states = {status.cell.id: status.state for status in statuses}
    chosen = {cell.id: locks[cell.id] for cell in cells if cell.id in locks}
    whole = [with_local_wheels(locked, store)[0] for locked in chosen.values()]
    licences = stored_licences(whole, store)
    return SiteReport(
        cells=tuple(cells),
        states=states,
        sheets=tuple(_sheet(session, cell, locks[cell.id], licences) for cell in cells if cell.id in locks),
        unlocked=tuple(
            UnlockedCell(status.cell, status.missing, nearest(status.cell, matrix.cells(), locks))
            for status in statuses
            if status.cell.id not in locks
        ),
        defaults=frozenset(matrix.defaults.values()),
        others=tuple(locked for name, locked in locks.items() if name not in chosen),
        packages=packages_of(session.matrices, whole, licences),
        descriptions={image: matrix.select(image)[0].description for image in matrix.defaults},
        unconfirmed=unconfirmed(matrix.rules, dt.datetime.now(dt.UTC).date()),
    )


def _sheet(session: Session, cell: Cell, locked: Lock, licences: Mapping[str, Licence]) -> CellReport:
    whole, lacking = with_local_wheels(locked, session.project.store)
    tested = cell_states.passed_smoke_report(session.project.store, cell, whole)
    return CellReport(
        cell=cell,
        lock=locked,
        stale=tuple(lock.stale(locked, cell)),
        layers=layers.layer_sizes(whole, session.project.store, whole=not lacking),
        history=lock_history.history(session, cell, locked),
        smoke=tested.report if tested else None,
        audit=audit_report(whole, cell, session.project.store),
        tag=local_tags(locked)[0],
        remote=_remote(session, cell, locked),
        downloads=_downloads(session, cell, whole, licences),
    )


def _downloads(
    session: Session, cell: Cell, locked: Lock, licences: Mapping[str, Licence]
) -> dict[str, tuple[str, bytes]]:
    """Return the files to download from a cell's page: title -> file name, content. No file is fetched for it."""
    files = {"lock": (f"{cell.id}.toml", session.lock_files.text(cell).encode())}
    if digest := expected_digest(locked, session.project.store, "zstd"):
        document = sbom(locked, digest, with_system(locked, licences, session.project.store))
        files["SBOM (CycloneDX)"] = (f"{cell.id}.cdx.json", document)
    if not cell.environments:
        text = dockerfile.render(locked, local_tags(locked)[0]).dockerfile
        files["Dockerfile"] = (f"{cell.id}.Dockerfile", text.encode())
    return files


def _remote(session: Session, cell: Cell, locked: Lock) -> tuple[str, ...]:
    repository = published_repository(session.project, cell)
    if repository is None:
        return ()
    (default,) = session.matrix.select(cell.image)
    try:
        image_tags = tags(TagInput.of(locked, default.axes))
    except PublishError as error:
        session.project.progress.say(str(error))
        return ()
    return f"{repository}:{image_tags.mutable[0]}", f"{repository}:{image_tags.immutable}"
