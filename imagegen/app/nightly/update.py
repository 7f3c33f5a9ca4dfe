"""Update locks: propose newer versions per cell, build, test and publish them, and save the lock in the project."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagegen import lock
from imagegen.app.check_locks import current_lock
from imagegen.app.comparison import comparison_facts
from imagegen.app.lock_files import LockFiles
from imagegen.app.make_locks import join_locks, lock_request
from imagegen.app.nightly.propose import Proposal, propose
from imagegen.app.nightly.releases import ReleaseIndex
from imagegen.app.nightly.run import CellOutcome, LockedCells, LockRepository, Steps, run
from imagegen.app.project import ProjectContext
from imagegen.app.publish import publish_images
from imagegen.app.publisher import Publisher, expected_tagged
from imagegen.app.session import Session
from imagegen.core.context import Context
from imagegen.core.errors import LockError
from imagegen.core.net import Client
from imagegen.image import base
from imagegen.image.base import LockedBase
from imagegen.lock.make.options import LockOptions
from imagegen.lock.make.stages import lock_cell
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell


def update_locks(
    session: Session, groups: Sequence[Sequence[Cell]], as_of: str, publisher: Publisher | None
) -> tuple[CellOutcome, ...]:
    """Update each cell to the newest accepted versions as of the time; the failure of a group does not stop the others.

    A group is one cell, or those whose images are published as one index. Images with several environments come last,
    so that they are joined from the updated locks of their cells. Without a publisher, write locks and changelog
    entries only. Raises TrustError for an unusable signer.
    """
    if publisher:
        publisher.load_signer()
    files = LockRepository(
        session.project.directory / "locks", _candidates_directory(session.project), comparison_facts(session.matrices)
    )
    ordered = sorted(groups, key=lambda cells: bool(cells[0].environments))
    before = {
        cell.id: _lock_before(session.lock_files, cell) for cells in ordered for cell in cells if cell.environments
    }
    bases: Bases = {}

    def propose_update(cell: Cell) -> Proposal:
        if cell.environments:
            return propose_joined(session.lock_files, as_of, before[cell.id], cell)
        return propose_cell(session, as_of, bases, cell)

    steps = Steps(propose_update)
    if publisher:
        steps = Steps(propose_update, partial(is_published, publisher), partial(publish_images, publisher))
    return run(ordered, steps, files, propose_only=publisher is None)


def _lock_before(lock_files: LockFiles, cell: Cell) -> Lock | None:
    """Return the lock of a cell with several environments; None where it cannot be read, which proposing reports."""
    try:
        return lock_files.find(cell)
    except LockError:
        return None


def propose_joined(lock_files: LockFiles, as_of: str, before: Lock | None, cell: Cell) -> Proposal:
    """Propose to join the current locks of the cells of an image with several environments.

    `before` is its lock as it was before cells were updated. Raises LockError or IncompatibleError if a lock is
    missing, stale or edited, and if the locks have different foundations.
    """
    locks = [current_lock(lock_files, environment.cell) for environment in cell.environments]
    combined = lock_files.find(cell)
    if combined and combined.has_several and not combined.moved:
        return Proposal(cell, as_of, combined, combined)
    file = lock.loads_combined(lock_files.text(cell), lock_files.path(cell)) if combined else None
    return Proposal(cell, as_of, before or combined, join_locks(lock_files, cell, locks), file=file)


Bases = dict[tuple[str, str], LockedBase]  # today's, by name and platform: each is resolved once in a run


def current_base(bases: Bases, cell: Cell, context: Context) -> LockedBase:
    """Return today's base of the cell, which is added to `bases` where it is missing."""
    key = cell.base.name, cell.platform
    if key not in bases:
        bases[key] = base.resolve(cell.base, cell.platform, context.settings, context.progress)
    return bases[key]


def propose_cell(session: Session, as_of: str, bases: Bases, cell: Cell) -> Proposal:
    """Propose an update of the cell; see `current_base` for `bases`."""
    context = session.project.context_for(cell)
    before = session.lock_files.find(cell)
    request = lock_request(session.matrices, cell, LockOptions())

    def resolve(previous: Lock | None, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock:
        same_base = bool(before and previous and previous.base == before.base)
        options = LockOptions(packages=tuple(upgraded), as_of=as_of, bounds=bounds, trust_previous_wheels=same_base)
        return lock_cell(replace(request, options=options), previous)

    releases = ReleaseIndex(as_of, context.settings, request.selector, context.progress)
    return propose(
        cell, before, as_of, session.matrices.rules, resolve, partial(current_base, bases, cell, context), releases.of
    )


def is_published(publisher: Publisher, cells: LockedCells) -> bool:
    """Return whether all tags that this run would set name the image, or the index, that the locks record."""
    jobs = publisher.jobs(cells)
    tags, expected = jobs[0].tags, expected_tagged(jobs, publisher.session.project.store)
    if expected is None:
        return False
    with Client(publisher.session.project.settings) as client:
        repository = publisher.repository(client, publisher.reference(jobs[0].cell.image))
        tag_names = (tags.immutable, *(tags.mutable if publisher.options.test else ()))
        return all(repository.resolve_tag(tag) == expected for tag in tag_names)


def _candidates_directory(project: ProjectContext) -> Path:
    """Return the project's directory of locks that are not smoke-tested yet, next to the store."""
    name = hashlib.sha256(str(project.directory.resolve()).encode()).hexdigest()[:12]
    return project.settings.store.parent / "nightly" / name


def locked_groups(session: Session, pattern: str | None, platform: str | None) -> list[tuple[Cell, ...]]:
    """Return the matching cells that have a lock one by one, or with `platform` the cells of each index.

    Raises LockError if no cell has a lock, or only a part of an index has one.
    """
    locked = session.matrix.all_cells if pattern else session.lock_files.require_project_cells("imagegen nightly")
    names = {cell.id for cell in locked if session.lock_files.path(cell).exists()}
    chosen = session.matrices.select_groups(pattern or "*", platform)
    groups = [group for group in chosen if any(cell.id in names for cell in group)]
    unlocked = [cell for group in groups or chosen for cell in group if cell.id not in names]
    if groups and not unlocked:
        return groups
    fix = "`imagegen lock {}` creates the first lock, which nightly updates start from"
    if groups or len(chosen) == 1:
        cell = unlocked[0].id
        where = str(session.project.directory / "locks" / f"{cell}.toml")
        raise LockError(f"{cell} has no lock", code="lock-missing", where=where, fix=fix.format(cell))
    raise LockError(f"no cell that matches {pattern} is locked", code="lock-missing", fix=fix.format(pattern))
