"""Check, clean and measure the store, with the cells that use its blobs."""

from __future__ import annotations

from contextlib import suppress

from imagegen.app.session import Session
from imagegen.core.errors import FetchError, LockError, StoreError
from imagegen.core.store import images, upkeep
from imagegen.image import inputs
from imagegen.image.inventory.cell_subject import blobs
from imagegen.spec.model import Cell
from imagegen.wheels import wheelhouse

WHEELHOUSE = "the wheelhouse"  # among cells, as an owner of blobs


def _locked(session: Session, cell: Cell) -> dict[str, str]:
    """Return the digests of all files that the cell's lock names and of the scans of its wheels, with descriptions."""
    lock = session.lock_files.find(cell)
    return inputs.contents(lock) | blobs(lock, session.project.store) if lock else {}


def find_owners(session: Session) -> dict[str, dict[str, str]]:
    """Return digest -> cell -> description, from the locks and the images of the store."""
    owners: dict[str, dict[str, str]] = {}
    for name, digest in images.images(session.project.store).items():
        with suppress(FetchError, StoreError):  # the manifest or config is missing
            for part, use in images.parts(session.project.store, digest).items():
                owners.setdefault(part, {})[name] = use
        owners.setdefault(digest, {})[name] = "manifest"
    for cell in session.matrix.cells():
        with suppress(LockError):  # `list` reports a broken lock
            for part, use in _locked(session, cell).items():
                owners.setdefault(part, {})[cell.id] = use
    for part, use in wheelhouse.contents(session.project.store).items():
        owners.setdefault(part, {})[WHEELHOUSE] = use
    return owners


def collect_garbage(session: Session) -> int:
    """Remove blobs that no image, no lock and no compiled wheel needs, unused for a day; return their bytes."""
    store = session.project.store
    required = [digest for cell in session.matrix.cells() for digest in _locked(session, cell)]
    return upkeep.collect(store, [*required, *wheelhouse.contents(store)])
