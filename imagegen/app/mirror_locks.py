"""Copy all files that locks name to a directory or a registry."""

from __future__ import annotations

from collections.abc import Iterable

from imagegen import mirror
from imagegen.app.check_locks import require_unchanged_copies
from imagegen.app.session import Session
from imagegen.mirror import listing as mirror_listing
from imagegen.mirror.listing import MirrorArtifact
from imagegen.oci.registry.mirror import place
from imagegen.spec.model import Cell


def mirror_locks(session: Session, cells: Iterable[Cell], destination: str) -> mirror.MirrorResult:
    """Copy the files of the cells' locks, each once; `destination` is a directory or a repository."""
    project, at = session.project, place(destination, "--to")
    listings: dict[str, MirrorArtifact] = {}
    for cell in cells:
        image_lock = session.lock_files.fresh(cell)
        require_unchanged_copies(session.lock_files, cell, image_lock)  # writes patches into the store
        for part, lock in image_lock.by_cell(cell):
            mirror_listing.collect(lock, part.recipes, project.context_for(part))
            listings |= {listing.name: listing for listing in mirror_listing.listings(lock, project.store)}
    return mirror.fill(at, [*listings.values()], project.context)
