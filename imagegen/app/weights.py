"""Sizes of images, layers and packages."""

from __future__ import annotations

from dataclasses import dataclass

from imagegen.app.session import Session
from imagegen.core.errors import LockError
from imagegen.image.layers import Size, layer_sizes, package_sizes, shared
from imagegen.lock.model import Lock
from imagegen.wheels.wheelhouse import with_local_wheels


@dataclass(frozen=True)
class Weight:
    """Sizes in bytes. `shared` maps another cell's id to the number and the size of common layers."""

    cell: str
    layers: tuple[Size, ...]
    packages: tuple[Size, ...]
    shared: dict[str, tuple[int, int]]


def weigh(session: Session, lock: Lock) -> Weight:
    """Return the sizes of a lock's image, and the layers that it shares with the images of other locks."""
    other_locks = []
    for cell in session.matrix.cells():
        try:
            other_lock = session.lock_files.find(cell) if cell.id != lock.cell else None
        except LockError:
            continue  # `imagegen list` reports broken locks
        other_locks += [other_lock] if other_lock else []
    known_lock, lacking = with_local_wheels(lock, session.project.store)
    packages = package_sizes(known_lock, session.project.store) + tuple(
        Size(build.name, None, None) for build in lacking
    )
    return Weight(
        lock.cell,
        layer_sizes(known_lock, session.project.store, whole=not lacking),
        packages,
        shared(lock, other_locks),
    )
