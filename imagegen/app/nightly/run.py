"""One night: for each cell what could move, is built, proven and published; what fails leaves all as it was.

A candidate is a lock that is not proven. It lies in a folder beside the store, where `imagegen build` does not look,
and takes the place of the project's lock once its image is published. One that failed stays there, to be looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from imagegen.app.nightly import changes
from imagegen.app.nightly.propose import Proposal
from imagegen.core.errors import ImagegenError
from imagegen.plan import lock
from imagegen.plan.lock.model import Lock, Record
from imagegen.plan.matrix.model import Cell

Result = Literal["unchanged", "proposed", "published", "failed"]
Sentences = Callable[[Lock | None, Lock], Sequence[str]]


class Published(Protocol):
    """An image that is in the registry, under its tags."""

    @property
    def digest(self) -> str: ...

    @property
    def record(self) -> Record: ...

    @property
    def news(self) -> bool: ...  # whether the registry has anything now that it had not


def _nobody(cell: Cell, made: Lock) -> NoReturn:
    raise AssertionError(f"{cell.id} is only proposed ({made.as_of})")


@dataclass(frozen=True)
class Steps:
    """The steps for one cell; each raises ImagegenErrors. A proposal takes the first alone."""

    propose: Callable[[Cell], Proposal]
    published: Callable[[Cell, Lock], bool] = _nobody  # whether the registry has it, under all tags that are asked for
    publish: Callable[[Cell, Lock], Published] = _nobody  # builds, audits, pushes and proves, then moves the tags


@dataclass(frozen=True)
class LockRepository:
    """The files of an update run: `locks` of the project, `candidates` that are not smoke-tested yet."""

    locks: Path
    candidates: Path
    sentences: Sentences

    def candidate(self, cell: str) -> Path:
        return self.candidates / f"{cell}.toml"

    def lay(self, made: Lock) -> None:
        lock.write(made, self.candidate(made.cell))

    def keep(self, proposal: Proposal) -> None:
        """The lock into the project, and what changed with it."""
        if proposal.changed:
            moved = self.sentences(proposal.before, proposal.after)
            changes.add(self.locks / changes.FILE, changes.section(proposal, moved))
        lock.write(proposal.after, self.locks / f"{proposal.cell.id}.toml")
        self.candidate(proposal.cell.id).unlink(missing_ok=True)


@dataclass(frozen=True)
class Outcome:
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
    desk: LockRepository,
    *,
    propose_only: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Outcome, ...]:
    """All cells, each whatever becomes of the others. `propose_only` writes locks and changes, and builds nothing."""
    return tuple(_timed(cell, steps, desk, propose_only=propose_only, clock=clock) for cell in cells)


def _timed(
    cell: Cell, steps: Steps, desk: LockRepository, *, propose_only: bool, clock: Callable[[], float]
) -> Outcome:
    start = clock()
    proposal: Proposal | None = None
    try:
        proposal = steps.propose(cell)
        result, digest, proposal = _move(cell, proposal, steps, desk, propose_only=propose_only)
        return Outcome(cell.id, result, clock() - start, proposal, digest)
    except ImagegenError as error:
        candidate = desk.candidate(cell.id) if proposal and proposal.changed and not propose_only else None
        return Outcome(cell.id, "failed", clock() - start, proposal, error=error, candidate=candidate)


def _move(
    cell: Cell, proposal: Proposal, steps: Steps, desk: LockRepository, *, propose_only: bool
) -> tuple[Result, str | None, Proposal]:
    """Return the result, the digest of the image in the registry, and the proposal as it was written."""
    made = proposal.after
    if propose_only:
        if proposal.changed:
            desk.keep(proposal)
        return ("proposed" if proposal.changed else "unchanged"), None, proposal
    if not proposal.changed and made.record and steps.published(cell, made):
        return "unchanged", made.record.digest, proposal
    if proposal.changed:
        desk.lay(made)
    published = steps.publish(cell, made)
    made = replace(made, record=published.record)
    kept = replace(proposal, after=made) if proposal.changed else _recorded(proposal, made)
    if made != proposal.before:
        desk.keep(kept)
    return ("published" if proposal.changed or published.news else "unchanged"), published.digest, kept


def _recorded(proposal: Proposal, made: Lock) -> Proposal:
    """The lock that was there before, now with its record: nothing that changes would tell."""
    return replace(proposal, before=made, after=made)
