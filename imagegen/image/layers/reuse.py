"""Layers that this store can vouch for though their blobs are gone: nobody need make or fetch them to name them."""

from __future__ import annotations

from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.layers import foundation
from imagegen.image.layers.layer import Layer, recorded
from imagegen.image.layers.plan import plan
from imagegen.plan.lock.model import Lock


def remembered(lock: Lock, store: Store) -> dict[str, Layer]:
    """Key -> layer, of those of the lock's layers that this store has once made, with the codec in use.

    A base of a registry nobody makes: of its layers, those that were once seen to unpack to what its image says.
    """
    taken, content = foundation.taken(lock), lock.base.content
    names = foundation.names(lock) | {part.key: part.name for part in plan(lock)}
    for layer in taken:
        del names[layer.key]
    own = (recorded(store, name, key) for key, name in names.items())
    found = {layer.key: layer for layer in own if layer}
    for layer, theirs in zip(taken, content.layers if content else (), strict=True):
        if base.verified(theirs, store):
            found[layer.key] = layer
    return found
