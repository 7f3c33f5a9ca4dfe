"""Nightly update run: propose, build, smoke-test and publish each cell; a failure leaves the project's lock unchanged.

A candidate is a lock whose image has not passed its smoke tests. It lies in a directory next to the store, which
`imagegen build` does not read, and replaces the project's lock once its image is published. The candidate of a failed
run stays there for inspection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NoReturn

from imagegen import lock
from imagegen.app.nightly import changes, sentences
from imagegen.app.nightly.propose import Proposal
from imagegen.app.publish import PublishedImage
from imagegen.compare.difference import ComparisonFacts
from imagegen.core.errors import ImagegenError
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

Result = Literal["unchanged", "proposed", "published", "failed"]


LockedCells = Sequence[tuple[Cell, Lock]]  # one, or all whose images are one index


def _unused(cells: LockedCells) -> NoReturn:
    raise AssertionError(f"{cells[0][0].id} is only proposed")


@dataclass(frozen=True)
class Steps:
    """The steps for an image or an index; each raises ImagegenErrors. A proposal needs only `propose`."""

    propose: Callable[[Cell], Proposal]
    published: Callable[[LockedCells], bool] = _unused  # whether all requested tags name what the locks record
    publish: Callable[[LockedCells], Sequence[PublishedImage]] = (
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
            section = changes.section(proposal, sentences.sentences(proposal, self.known))
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
    groups: Iterable[Sequence[Cell]], steps: Steps, locks: LockRepository, *, propose_only: bool
) -> tuple[CellOutcome, ...]:
    """Run the steps for all cells; the failure of one group does not stop the others.

    A group is one cell, or the cells whose images are one index; if one of them fails, none is published. With
    `propose_only`, write locks and changelog entries and build nothing.
    """
    outcomes = (_run_group(group, steps, locks, propose_only=propose_only) for group in groups)
    return tuple(chain.from_iterable(outcomes))


def _run_group(cells: Sequence[Cell], steps: Steps, locks: LockRepository, *, propose_only: bool) -> list[CellOutcome]:
    start = time.monotonic()
    proposals: dict[str, Proposal] = {}
    try:
        for cell in cells:
            proposals[cell.id] = steps.propose(cell)
        outcomes = _run_steps([*proposals.values()], steps, locks, propose_only=propose_only)
    except ImagegenError as error:
        written = len(proposals) == len(cells) and not propose_only
        seconds = time.monotonic() - start
        return [_failed(cell, proposals.get(cell.id), error, seconds, locks, written=written) for cell in cells]
    return [replace(outcome, seconds=time.monotonic() - start) for outcome in outcomes]


def _failed(
    cell: Cell, proposal: Proposal | None, error: ImagegenError, seconds: float, locks: LockRepository, *, written: bool
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


def _save_published(proposal: Proposal, published: PublishedImage, locks: LockRepository) -> CellOutcome:
    locked = replace(proposal.after, record=published.record)
    # Only a record is not a change.
    final = replace(proposal, before=proposal.before if proposal.changed else locked, after=locked)
    if locked != proposal.before:
        locks.save(final)
    result: Result = "published" if proposal.changed or published.changed else "unchanged"
    return CellOutcome(proposal.cell.id, result, 0, final, published.digest)
