"""Update locks: propose newer versions per cell, build, test and publish them, and save the lock in the project."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from imagegen.app.comparison import comparison_facts
from imagegen.app.lock import wheel_selector
from imagegen.app.nightly import changes
from imagegen.app.nightly.propose import Proposal, propose
from imagegen.app.nightly.releases import ReleaseIndex
from imagegen.app.nightly.run import CellOutcome, LockRepository, Steps, run
from imagegen.app.publish import publish_image
from imagegen.app.publisher import Publisher
from imagegen.app.session import Session
from imagegen.core.net import Client
from imagegen.image import base
from imagegen.image.base import LockedBase
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.wheels.resolve import LockOptions, lock_cell


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
        partial(changes.sentences, known=comparison_facts(session)),
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
    chooser = wheel_selector(session, cell)
    before = session.find_lock(cell)

    def resolve(previous: Lock | None, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock:
        same_base = bool(before and previous and previous.base == before.base)
        options = LockOptions(packages=tuple(upgraded), as_of=as_of, bounds=bounds, trust_previous_wheels=same_base)
        return lock_cell(cell, previous, options, session.matrix.rules, chooser, context)

    def current_base() -> LockedBase:
        name = cell.base.name
        if name not in bases:
            bases[name] = base.resolve(cell.base, context.settings, context.progress)
        return bases[name]

    releases = ReleaseIndex(as_of, context.settings, chooser, context.progress)
    return propose(cell, before, as_of, session.matrix.rules, resolve, current_base, releases.of)


def is_published(publisher: Publisher, cell: Cell, lock: Lock) -> bool:
    """Return whether all tags that this run would set name the image that the lock records."""
    tags = publisher.tags(cell, lock)
    expected = (tags.immutable, *(tags.mutable if publisher.options.test else ()))
    with Client(publisher.session.settings) as client:
        repository = publisher.repository(client, publisher.reference(cell.image))
        return all(lock.record and repository.resolve_tag(tag) == lock.record.digest for tag in expected)


def _candidates_directory(session: Session) -> Path:
    """Return the directory of locks that are not smoke-tested yet: beside the store, one for each project."""
    name = hashlib.sha256(str(session.project.resolve()).encode()).hexdigest()[:12]
    return session.settings.store.parent / "nightly" / name
