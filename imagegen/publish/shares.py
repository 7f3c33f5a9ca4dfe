"""Distribute the layers of images among the workers of their cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from imagegen.image.layers.plan import LayerPlan, is_heavy, plan
from imagegen.image.layers.sources import plan_layers
from imagegen.lock.model import Lock


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
