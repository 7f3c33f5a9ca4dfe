"""Nightly update run: propose, build, smoke-test and publish each cell; a failure leaves the project's lock unchanged.

A candidate is a lock whose image has not passed its smoke tests. It lies in a directory next to the store, which
`imagegen build` does not read, and replaces the project's lock once its image is published. The candidate of a failed
run stays there for inspection.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from imagegen.app.check_locks import current_lock
from imagegen.app.comparison import comparison_facts
from imagegen.app.make_locks import join_locks, lock_request
from imagegen.app.nightly import changes
from imagegen.app.nightly.propose import Proposal, ReleaseIndex, propose
from imagegen.app.publish import Publisher, expected_tagged, publish_images
from imagegen.app.session import Session
from imagegen.core.context import Context
from imagegen.core.errors import ImagegenError, LockError
from imagegen.core.net import Client
from imagegen.image import base
from imagegen.image.base import LockedBase
from imagegen.plan import lock
from imagegen.plan.lock.environments import CombinedLock
from imagegen.plan.lock.model import Lock, Record
from imagegen.plan.matrix.model import Cell
from imagegen.supply.compare.difference import ComparisonFacts
from imagegen.wheels.resolve.options import LockOptions
from imagegen.wheels.resolve.stages import lock_cell

Result = Literal["unchanged", "proposed", "published", "failed"]


class Publication(Protocol):
    """An image that is in the registry, under its tags."""

    @property
    def digest(self) -> str: ...

    @property
    def record(self) -> Record: ...

    @property
    def changed(self) -> bool: ...  # whether the registry has anything now that it had not


LockedCells = Sequence[tuple[Cell, Lock]]  # one, or all whose images are one index


def _unused(cells: LockedCells) -> NoReturn:
    raise AssertionError(f"{cells[0][0].id} is only proposed")


@dataclass(frozen=True)
class Steps:
    """The steps for an image or an index; each raises ImagegenErrors. A proposal needs only `propose`."""

    propose: Callable[[Cell], Proposal]
    published: Callable[[LockedCells], bool] = _unused  # whether all requested tags name what the locks record
    publish: Callable[[LockedCells], Sequence[Publication]] = (
        _unused  # builds, audits, pushes and smoke-tests, then moves the tags
    )


@dataclass(frozen=True)
class LockRepository:
    """The files of an update run: `locks` of the project, `candidates` that are not smoke-tested yet."""

    locks: Path
    candidates: Path
    known: ComparisonFacts

    def candidate(self, cell: str) -> Path:
        return self.candidates / f"{cell}.toml"

    def write_candidate(self, locked: Lock) -> None:
        lock.write(locked, self.candidate(locked.cell))

    def save(self, proposal: Proposal) -> None:
        """Write the lock and its changelog entry to the project, and remove the candidate."""
        if proposal.changed:
            section = changes.section(proposal, changes.sentences(proposal, self.known))
            changes.add(self.locks / changes.FILE, section)
        lock.write(proposal.after, self.locks / f"{proposal.cell.id}.toml")
        self.candidate(proposal.cell.id).unlink(missing_ok=True)


@dataclass(frozen=True)
class CellOutcome:
    cell: str
    result: Result
    seconds: float
    proposal: Proposal | None = None
    digest: str | None = None
    error: ImagegenError | None = None
    candidate: Path | None = None  # the lock that failed


def run(
    groups: Iterable[Sequence[Cell]],
    steps: Steps,
    locks: LockRepository,
    *,
    propose_only: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[CellOutcome, ...]:
    """Run the steps for all cells; the failure of one group does not stop the others.

    A group is one cell, or the cells whose images are one index; if one of them fails, none is published. With
    `propose_only`, write locks and changelog entries and build nothing.
    """
    return tuple(
        outcome
        for group in groups
        for outcome in _run_group(group, steps, locks, propose_only=propose_only, clock=clock)
    )


def _run_group(
    cells: Sequence[Cell], steps: Steps, locks: LockRepository, *, propose_only: bool, clock: Callable[[], float]
) -> list[CellOutcome]:
    start = clock()
    proposals: dict[str, Proposal] = {}
    try:
        for cell in cells:
            proposals[cell.id] = steps.propose(cell)
        outcomes = _run_steps([*proposals.values()], steps, locks, propose_only=propose_only)
    except ImagegenError as error:
        written = len(proposals) == len(cells) and not propose_only
        return [_failed(cell, proposals.get(cell.id), error, clock() - start, locks, written=written) for cell in cells]
    return [replace(outcome, seconds=clock() - start) for outcome in outcomes]


def _failed(
    cell: Cell,
    proposal: Proposal | None,
    error: ImagegenError,
    seconds: float,
    locks: LockRepository,
    *,
    written: bool,
) -> CellOutcome:
    """Return the outcome of a cell whose group failed; `written` is whether the group's candidates are."""
    candidate = locks.candidate(cell.id) if written and proposal and proposal.changed else None
    return CellOutcome(cell.id, "failed", seconds, proposal, error=error, candidate=candidate)


def _run_steps(
    proposals: Sequence[Proposal], steps: Steps, locks: LockRepository, *, propose_only: bool
) -> list[CellOutcome]:
    """Write, publish and save the proposals; return the outcome of each, without its seconds."""
    if propose_only:
        return [_save_proposed(proposal, locks) for proposal in proposals]
    locks_by_cell = [(proposal.cell, proposal.after) for proposal in proposals]
    records = [proposal.after.record for proposal in proposals if proposal.after.record and not proposal.changed]
    if len(records) == len(proposals) and steps.published(locks_by_cell):
        return [
            CellOutcome(update.cell.id, "unchanged", 0, update, record.digest)
            for update, record in zip(proposals, records, strict=True)
        ]
    for update in proposals:
        if update.changed:
            locks.write_candidate(update.after)
    published = steps.publish(locks_by_cell)
    return [_save_published(update, image, locks) for update, image in zip(proposals, published, strict=True)]


def _save_proposed(proposal: Proposal, locks: LockRepository) -> CellOutcome:
    if proposal.changed:
        locks.save(proposal)
    return CellOutcome(proposal.cell.id, "proposed" if proposal.changed else "unchanged", 0, proposal)


def _save_published(proposal: Proposal, published: Publication, locks: LockRepository) -> CellOutcome:
    locked = replace(proposal.after, record=published.record)
    final = replace(proposal, after=locked) if proposal.changed else _recorded(proposal, locked)
    if locked != proposal.before:
        locks.save(final)
    result: Result = "published" if proposal.changed or published.changed else "unchanged"
    return CellOutcome(proposal.cell.id, result, 0, final, published.digest)


def _recorded(proposal: Proposal, locked: Lock) -> Proposal:
    """Return the proposal with the recorded lock as `before` and `after`, because only a record is not a change."""
    return replace(proposal, before=locked, after=locked)


# Update locks: propose newer versions per cell, build, test and publish them, and save the lock in the project.


def update_locks(
    session: Session, groups: Sequence[Sequence[Cell]], as_of: str, publisher: Publisher | None
) -> tuple[CellOutcome, ...]:
    """Update each cell to the newest accepted versions as of the time; the failure of a group does not stop the others.

    A group is one cell, or those whose images are published as one index. Images with several environments come last,
    so that they are joined from the updated locks of their cells. Without a publisher, write locks and changelog
    entries only. Raises TrustError for an unusable signer.
    """
    if publisher:
        publisher.require_signer()
    files = LockRepository(
        session.project / "locks",
        _candidates_directory(session),
        comparison_facts(session),
    )
    ordered = sorted(groups, key=lambda cells: bool(cells[0].environments))
    before = {cell.id: _lock_before(session, cell) for cells in ordered for cell in cells if cell.environments}
    bases: Bases = {}

    def propose_update(cell: Cell) -> Proposal:
        if cell.environments:
            return propose_joined(session, as_of, before[cell.id], cell)
        return propose_cell(session, as_of, bases, cell)

    steps = Steps(propose_update)
    if publisher:
        steps = Steps(propose_update, partial(is_published, publisher), partial(publish_images, publisher))
    return run(ordered, steps, files, propose_only=publisher is None)


def _lock_before(session: Session, cell: Cell) -> Lock | None:
    """Return the lock of a cell with several environments; None where it cannot be read, which proposing reports."""
    try:
        return session.find_lock(cell)
    except LockError:
        return None


def propose_joined(session: Session, as_of: str, before: Lock | None, cell: Cell) -> Proposal:
    """Propose to join the current locks of the cells of an image with several environments.

    `before` is its lock as it was before cells were updated. Raises LockError or IncompatibleError if a lock is
    missing, stale or edited, and if the locks have different foundations.
    """
    locks = [current_lock(session, environment.cell) for environment in cell.environments]
    combined = session.find_lock(cell)
    if isinstance(combined, CombinedLock) and not combined.moved:
        return Proposal(cell, as_of, combined, combined)
    file = lock.loads_combined(session.lock_text(cell), session.lock_path(cell)) if combined else None
    return Proposal(cell, as_of, before or combined, join_locks(session, cell, locks), file=file)


Bases = dict[tuple[str, str], LockedBase]  # today's, by name and platform: each is resolved once in a run


def current_base(bases: Bases, cell: Cell, context: Context) -> LockedBase:
    """Return today's base of the cell, which is added to `bases` where it is missing."""
    key = cell.base.name, cell.platform
    if key not in bases:
        bases[key] = base.resolve(cell.base, cell.platform, context.settings, context.progress)
    return bases[key]


def propose_cell(session: Session, as_of: str, bases: Bases, cell: Cell) -> Proposal:
    """Propose an update of the cell; see `current_base` for `bases`."""
    context = session.context_for(cell)
    before = session.find_lock(cell)
    request = lock_request(session, cell, LockOptions())

    def resolve(previous: Lock | None, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock:
        same_base = bool(before and previous and previous.base == before.base)
        options = LockOptions(packages=tuple(upgraded), as_of=as_of, bounds=bounds, trust_previous_wheels=same_base)
        return lock_cell(replace(request, options=options), previous)

    releases = ReleaseIndex(as_of, context.settings, request.selector, context.progress)
    return propose(
        cell, before, as_of, session.rules, resolve, partial(current_base, bases, cell, context), releases.of
    )


def is_published(publisher: Publisher, cells: LockedCells) -> bool:
    """Return whether all tags that this run would set name the image, or the index, that the locks record."""
    jobs = publisher.jobs(cells)
    tags, expected = jobs[0].tags, expected_tagged(jobs, publisher.session.store)
    if expected is None:
        return False
    with Client(publisher.session.settings) as client:
        repository = publisher.repository(client, publisher.reference(jobs[0].cell.image))
        tag_names = (tags.immutable, *(tags.mutable if publisher.options.test else ()))
        return all(repository.resolve_tag(tag) == expected for tag in tag_names)


def _candidates_directory(session: Session) -> Path:
    """Return the project's directory of locks that are not smoke-tested yet, next to the store."""
    name = hashlib.sha256(str(session.project.resolve()).encode()).hexdigest()[:12]
    return session.settings.store.parent / "nightly" / name
