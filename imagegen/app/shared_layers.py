"""Make layers that other images need too, and publish them before the image is finished, so that workers share them.

The steps for one image, when several workers may publish images of one project at the same time:

1. Layers that others have published are found in the registry, the base among them.
2. The layers that this worker makes for all are made, pushed and attested.
3. The layers that only this image has are made; meanwhile other workers publish theirs.
4. The layers of the others are looked up again; a quarter of the missing ones are made, pushed and attested; and so on
   until none is missing. So the others replace a worker that ended or does not run, and no worker waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.errors import LockError
from imagegen.core.text import counted
from imagegen.image.inventory.cell_subject import scan_system
from imagegen.image.layers import Layer, RemoteLayers, ResolvedLayers, ensure_layers, resolve_layers
from imagegen.image.layers.base_layers import from_image, plan_base
from imagegen.image.layers.plan import LayerPlan, is_heavy, plan
from imagegen.image.layers.sources import plan_layers
from imagegen.lock.model import Lock
from imagegen.publish import prebuilt
from imagegen.publish.repository import RemoteRepository
from imagegen.spec.model import Cell
from imagegen.trust.signers import Signer, Trust

_SHARED = 2  # cells, with the one that is published
_ROUNDS = 4  # a larger number makes fewer layers twice, and downloads fewer at a time where no other worker runs


@dataclass(frozen=True)
class SharedRegistry:
    """Repositories in which workers share layers, by image, and the signer of shared layers; `own` is the image's."""

    own: RemoteRepository
    repositories: Mapping[str, RemoteRepository]
    signer: Signer
    trust: Trust


def share_layers(
    session: Session, cell: Cell, lock: Lock, remote: RemoteLayers, registry: SharedRegistry
) -> RemoteLayers:
    """Make the layers that the cell shares with other cells; return `remote` with those that other workers made.

    An image with several environments shares none, because its own layers have the shared files.

    Raises as `ensure_layers`, and PublishError, FetchError, TrustError.
    """
    store = session.project.store
    absent = [source.plan for source in resolve_layers(lock, store, remote).absent]
    if not absent or lock.has_several:
        return remote
    overridden = {name for conflict in lock.file_conflicts for name in conflict.over}  # checked with all wheels at once
    apart = [part for part in absent if part.wheels and not overridden & {wheel.name for wheel in part.wheels}]
    locks, below = _locks(session, cell), plan_base(lock)
    shares = share(apart, cell.id, locks)
    base_users = [locked for locked in locks.values() if plan_base(locked) == below]
    if not shares.assigned and not shares.delegated and len(base_users) < _SHARED:
        return remote
    images = images_by_layer(locks.values())
    remote = _find(session.project, lock, [*below, *shares.assigned, *shares.delegated], images, remote, registry)
    _attest(session.project, cell, lock, _make(session.project, cell, lock, shares.assigned, remote), registry)
    pending = _still(resolve_layers(lock, store, remote), shares.delegated)
    if pending:
        _make(session.project, cell, lock, shares.unshared, remote)
    while pending:
        remote = _find(session.project, lock, pending, images, remote, registry)
        pending = _still(resolve_layers(lock, store, remote), pending)
        some = -(-len(pending) // _ROUNDS)
        _attest(session.project, cell, lock, _make(session.project, cell, lock, pending[:some], remote), registry)
        pending = pending[some:]
    return remote


def _still(resolved: ResolvedLayers, plans: Sequence[LayerPlan]) -> list[LayerPlan]:
    """Return the layers that neither the store nor a registry has, in their order."""
    absent = {source.plan.key for source in resolved.absent}
    return [part for part in plans if part.key in absent]


def _find(
    project: ProjectContext,
    lock: Lock,
    plans: Sequence[LayerPlan],
    images: Mapping[str, Collection[str]],
    remote: RemoteLayers,
    registry: SharedRegistry,
) -> RemoteLayers:
    """Return `remote` with the layers that other workers have published; `images` maps a layer to images with it."""
    repositories = {
        part.key: [registry.repositories[image] for image in sorted(images.get(part.name, ()))] for part in plans
    }
    published = prebuilt.find(repositories, lock, registry.own, registry.trust, project.store, project.progress)
    if not published:
        return remote
    names = ", ".join(sorted(layer.name for layer in published.values()))
    project.progress.say(f"{registry.own.name} has {counted(len(published), 'layer')} of other workers: {names}")
    return replace(remote, repository=registry.own.reader, layers={**remote.layers, **published})


def _make(
    project: ProjectContext, cell: Cell, lock: Lock, plans: Sequence[LayerPlan], remote: RemoteLayers
) -> tuple[Layer, ...]:
    """Make the absent layers, and the base if it is absent; return the new layers."""
    resolved = resolve_layers(lock, project.store, remote)
    plans, keys = _still(resolved, plans), resolved.base_keys | {part.key for part in plans}
    sources = tuple(source for source in resolved.sources if source.plan.key in keys)
    some = replace(resolved, lock=_part_of(lock, plans), sources=sources)
    return tuple(ensure_layers(some, project.context_for(cell))) if some.absent else ()


def _attest(
    project: ProjectContext, cell: Cell, lock: Lock, made_layers: Sequence[Layer], registry: SharedRegistry
) -> None:
    """Publish layers, without the layers of a base from a registry, which that image identifies.

    The scan of a base is published with it; otherwise other workers would make the base for their audit.
    """
    registry_keys = {layer.key for layer in from_image(lock)}
    layers = [layer for layer in made_layers if layer.key not in registry_keys]
    if layers:
        keys = {layer.key for layer in layers}
        if keys & {part.key for part in plan_base(lock)}:
            scan_system(lock, project.context_for(cell))
        some = _part_of(lock, [part for part in plan_layers(lock) if part.key in keys])
        prebuilt.attest(layers, some, registry.own, project.store, registry.signer, registry.trust, project.progress)


def _part_of(lock: Lock, plans: Sequence[LayerPlan]) -> Lock:
    """Return the lock with only the wheels of these layers."""
    return replace(lock, wheels=tuple(wheel for part in plans for wheel in part.wheels))


def _locks(session: Session, cell: Cell) -> dict[str, Lock]:
    """Return the locks of the cells that may share layers, by cell. They are the project's own, or the shipped ones.

    A lock that cannot be read ends only the publishing of its own cell.
    """
    cells = session.matrix.cells()
    own_cells = [cell_of_matrix for cell_of_matrix in cells if session.lock_files.is_in_project(cell_of_matrix)]
    locks: dict[str, Lock] = {}
    for candidate in own_cells if cell in own_cells else cells:
        with suppress(LockError):
            if locked := session.lock_files.find(candidate):
                locks[candidate.id] = locked
    return locks


@dataclass(frozen=True)
class Shares:
    """The missing layers of an image, in the order in which its worker needs them.

    The worker builds the `assigned` layers for several images, and the `unshared` layers only for its image. Other
    workers build the `delegated` layers.
    """

    assigned: tuple[LayerPlan, ...]
    unshared: tuple[LayerPlan, ...]
    delegated: tuple[LayerPlan, ...]


def share(missing: Sequence[LayerPlan], cell: str, locks: Mapping[str, Lock]) -> Shares:
    """Distribute the missing layers of a cell among the workers of all cells in `locks`, which all workers have.

    A layer of one heavy wheel that several locks name is assigned to one of their cells. From the heaviest wheel down,
    it is the cell with the fewest assigned bytes. A layer whose wheels differ from the cell's lock counts as the layer
    of the same name in that lock, since an update reaches all cells that share it.
    """
    users: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    names: dict[str, str] = {}
    for other, lock in sorted(locks.items()):
        for layer in plan(lock):
            if _is_shared(layer):
                users.setdefault(layer.key, []).append(other)
                sizes[layer.key] = layer.wheels[0].file.estimate
                if other == cell:
                    names[layer.name] = layer.key
    load = dict.fromkeys(locks, 0)
    workers: dict[str, str] = {}
    for key in sorted(users, key=lambda key: (-sizes[key], key)):
        workers[key] = min(users[key], key=lambda user: (load[user], user))
        load[workers[key]] += sizes[key]
    order = sorted(locks)
    turns = {other: (order.index(other) - order.index(cell)) % len(order) for other in order} if cell in locks else {}

    def worker(layer: LayerPlan) -> str | None:
        key = names.get(layer.name) if _is_shared(layer) else None
        return workers[key] if key and len(users[key]) > 1 else None

    delegated = [layer for layer in missing if worker(layer) not in (None, cell)]
    return Shares(
        tuple(layer for layer in missing if worker(layer) == cell),
        tuple(layer for layer in missing if worker(layer) is None),
        tuple(sorted(delegated, key=lambda layer: (turns[str(worker(layer))], layer.name))),
    )


def images_by_layer(locks: Iterable[Lock]) -> dict[str, set[str]]:
    """Return the images that have a layer of each name. An update may change its wheels, and so its key."""
    images: dict[str, set[str]] = {}
    for lock in locks:
        for layer in plan_layers(lock):
            images.setdefault(layer.name, set()).add(lock.image)
    return images


def _is_shared(layer: LayerPlan) -> bool:
    return len(layer.wheels) == 1 and is_heavy(layer.wheels[0])
