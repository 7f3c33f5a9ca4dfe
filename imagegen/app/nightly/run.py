"""Nightly update run: propose, build, smoke-test and publish each cell; a failure leaves the project's lock unchanged.

A candidate is a lock whose image has not passed its smoke tests. It lies in a directory beside the store, which
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

from imagegen.app.comparison import comparison_facts
from imagegen.app.lock import own_packages, wheel_selector
from imagegen.app.nightly import changes
from imagegen.app.nightly.propose import Proposal, ReleaseIndex, propose
from imagegen.app.publish import Publisher, publish_image
from imagegen.app.session import Session
from imagegen.core.errors import ImagegenError
from imagegen.core.net import Client
from imagegen.image import base
from imagegen.image.base import LockedBase
from imagegen.plan import lock
from imagegen.plan.lock.model import Lock, Record
from imagegen.plan.matrix.model import Cell
from imagegen.plan.projects.stack import read_stack
from imagegen.supply.compare.difference import ComparisonFacts
from imagegen.wheels.resolve import LockOptions, lock_cell

Result = Literal["unchanged", "proposed", "published", "failed"]


class Publication(Protocol):
    """An image that is in the registry, under its tags."""

    @property
    def digest(self) -> str: ...

    @property
    def record(self) -> Record: ...

    @property
    def changed(self) -> bool: ...  # whether the registry has anything now that it had not


def _unused(cell: Cell, made: Lock) -> NoReturn:
    raise AssertionError(f"{cell.id} is only proposed ({made.as_of})")


@dataclass(frozen=True)
class Steps:
    """The steps for one cell; each raises ImagegenErrors. A proposal takes the first alone."""

    propose: Callable[[Cell], Proposal]
    published: Callable[[Cell, Lock], bool] = _unused  # whether the registry has it under all requested tags
    publish: Callable[[Cell, Lock], Publication] = (
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

    def write_candidate(self, made: Lock) -> None:
        lock.write(made, self.candidate(made.cell))

    def save(self, proposal: Proposal) -> None:
        """Write the lock and its changelog entry to the project, and remove the candidate."""
        if proposal.changed:
            moved = changes.sentences(proposal.before, proposal.after, self.known)
            changes.add(self.locks / changes.FILE, changes.section(proposal, moved))
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
    cells: Iterable[Cell],
    steps: Steps,
    locks: LockRepository,
    *,
    propose_only: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[CellOutcome, ...]:
    """Run the steps for all cells; the failure of one does not stop the others.

    With `propose_only`, write locks and changelog entries and build nothing.
    """
    return tuple(_timed(cell, steps, locks, propose_only=propose_only, clock=clock) for cell in cells)


def _timed(
    cell: Cell, steps: Steps, locks: LockRepository, *, propose_only: bool, clock: Callable[[], float]
) -> CellOutcome:
    start = clock()
    proposal: Proposal | None = None
    try:
        proposal = steps.propose(cell)
        result, digest, proposal = _run_steps(cell, proposal, steps, locks, propose_only=propose_only)
        return CellOutcome(cell.id, result, clock() - start, proposal, digest)
    except ImagegenError as error:
        candidate = locks.candidate(cell.id) if proposal and proposal.changed and not propose_only else None
        return CellOutcome(cell.id, "failed", clock() - start, proposal, error=error, candidate=candidate)


def _run_steps(
    cell: Cell, proposal: Proposal, steps: Steps, locks: LockRepository, *, propose_only: bool
) -> tuple[Result, str | None, Proposal]:
    """Write, publish and save what was proposed.

    Return the result, the digest of the image in the registry, and the proposal as it was written.
    """
    made = proposal.after
    if propose_only:
        if proposal.changed:
            locks.save(proposal)
        return ("proposed" if proposal.changed else "unchanged"), None, proposal
    if not proposal.changed and made.record and steps.published(cell, made):
        return "unchanged", made.record.digest, proposal
    if proposal.changed:
        locks.write_candidate(made)
    published = steps.publish(cell, made)
    made = replace(made, record=published.record)
    kept = replace(proposal, after=made) if proposal.changed else _recorded(proposal, made)
    if made != proposal.before:
        locks.save(kept)
    return ("published" if proposal.changed or published.changed else "unchanged"), published.digest, kept


def _recorded(proposal: Proposal, made: Lock) -> Proposal:
    """Return the proposal with the recorded lock as `before` and `after`: a record alone is not
    reported as a change.
    """
    return replace(proposal, before=made, after=made)


# Update locks: propose newer versions per cell, build, test and publish them, and save the lock in the project.


def update_locks(
    session: Session, cells: Sequence[Cell], as_of: str, publisher: Publisher | None
) -> tuple[CellOutcome, ...]:
    """Update each cell to the newest accepted versions as of the time; the failure of one does not stop the others.

    Without a publisher, write locks and changelog entries only. Raises TrustError for an unusable signer.
    """
    if publisher:
        publisher.require_signer()
    files = LockRepository(
        session.project / "locks",
        _candidates_directory(session),
        comparison_facts(session),
    )
    propose_update = partial(propose_cell, session, as_of, {})
    steps = Steps(propose_update)
    if publisher:
        steps = Steps(propose_update, partial(is_published, publisher), partial(publish_image, publisher))
    return run(cells, steps, files, propose_only=publisher is None)


def propose_cell(session: Session, as_of: str, bases: dict[str, LockedBase], cell: Cell) -> Proposal:
    """Propose an update of the cell.

    `bases` are today's bases by name, so that each is resolved once in a run; missing ones are added.
    """
    context = session.context_for(cell)
    selector = wheel_selector(session, cell)
    before = session.find_lock(cell)
    packed = own_packages(session, cell)
    stack = read_stack(cell.stack, session.project) if cell.stack else None

    def resolve(previous: Lock | None, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock:
        same_base = bool(before and previous and previous.base == before.base)
        options = LockOptions(packages=tuple(upgraded), as_of=as_of, bounds=bounds, trust_previous_wheels=same_base)
        return lock_cell(cell, previous, options, session.rules, selector, context, packed, stack)

    def current_base() -> LockedBase:
        name = cell.base.name
        if name not in bases:
            bases[name] = base.resolve(cell.base, cell.platform, context.settings, context.progress)
        return bases[name]

    releases = ReleaseIndex(as_of, context.settings, selector, context.progress)
    return propose(cell, before, as_of, session.rules, resolve, current_base, releases.of)


def is_published(publisher: Publisher, cell: Cell, lock: Lock) -> bool:
    """Return whether all tags that this run would set name the image that the lock records."""
    tags = publisher.tags([(cell, lock)])
    expected = (tags.immutable, *(tags.mutable if publisher.options.test else ()))
    with Client(publisher.session.settings) as client:
        repository = publisher.repository(client, publisher.reference(cell.image))
        return all(lock.record and repository.resolve_tag(tag) == lock.record.digest for tag in expected)


def _candidates_directory(session: Session) -> Path:
    """Return the directory of locks that are not smoke-tested yet: beside the store, one for each project."""
    name = hashlib.sha256(str(session.project.resolve()).encode()).hexdigest()[:12]
    return session.settings.store.parent / "nightly" / name
