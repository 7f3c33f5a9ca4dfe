"""Decide where each layer of an image comes from, before anything is fetched or built."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from imagegen.artifacts.graph import locked_files, plan_package
from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.file_tree import bytecode_base
from imagegen.image.layers import ownership
from imagegen.image.layers.base_layers import cached_base, from_image, plan_base
from imagegen.image.layers.layer import Layer, previously_built, stored
from imagegen.image.layers.plan import INTERPRETER, LayerPlan, plan
from imagegen.lock.model import Lock
from imagegen.oci import registry

_INTERPRETER_BYTES = 300 << 20  # estimate for a standalone interpreter's archive, its files and its layer


@dataclass(frozen=True)
class RemoteLayers:
    """Layers by key that a trusted attestation describes.

    `repository` stores them, or, if `recompressed` has the key, the same layer in another compression.
    """

    repository: registry.Repository | None = None
    layers: Mapping[str, Layer] = field(default_factory=dict)
    recompressed: Mapping[str, Layer] = field(default_factory=dict)


class LayerOrigin(Enum):
    STORE = "store"
    REMOTE = "remote"  # neither built nor fetched, since the repository that it is for stores it
    BUILD = "build"


@dataclass(frozen=True)
class LayerSource:
    """The origin of one layer; `layer` is None for one to be built."""

    plan: LayerPlan
    origin: LayerOrigin
    layer: Layer | None = None


def plan_layers(lock: Lock) -> tuple[LayerPlan, ...]:
    """Return the plan of every layer of the lock's image, from the bottom up."""
    return (*plan_base(lock), *plan(lock))


def resolve_layers(lock: Lock, store: Store, remote: RemoteLayers | None = None) -> tuple[LayerSource, ...]:
    """Return the source of every layer, from the bottom up. Prefer the store, then `remote`, then a build.

    A remote layer of wheels is used only where the scans of its wheels are known, since files that two packages own
    are found with them.
    """
    cached = {layer.key: layer for layer in cached_base(lock, store)}
    trusted = _trusted(lock, remote.layers) if remote else {}
    sources = []
    for part in plan_layers(lock):
        if layer := cached.get(part.key) or stored(store, part.name, part.key):
            sources.append(LayerSource(part, LayerOrigin.STORE, layer))
        elif (layer := trusted.get(part.key)) and all(
            ownership.known(store, wheel, lock.python) is not None for wheel in part.wheels
        ):
            sources.append(LayerSource(part, LayerOrigin.REMOTE, layer))
        else:
            sources.append(LayerSource(part, LayerOrigin.BUILD))
    return tuple(sources)


def _trusted(lock: Lock, layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """Return by key the layers that the image needs; of a registry's image, those with the locked digest.

    The key of such a layer names what it unpacks to, not the blob.
    """
    base_layers = {layer.key: layer for layer in from_image(lock)}
    layers_by_key = {
        part.key: replace(layers[part.key], name=part.name, key=part.key)
        for part in plan_layers(lock)
        if part.key in layers
    }
    return {
        key: base_layers.get(key, layer)
        for key, layer in layers_by_key.items()
        if key not in base_layers or base_layers[key].digest == layer.digest
    }


def prebuilt_base(lock: Lock, remote: RemoteLayers | None) -> base.PrebuiltBase | None:
    """Return base and added packages as `remote` has them; None where a layer of them is not there."""
    if remote is None or remote.repository is None:
        return None
    trusted = _trusted(lock, remote.layers)
    plans = [part for part in plan_base(lock) if part.name != INTERPRETER]
    if not all(part.key in trusted for part in plans):
        return None
    layers = tuple(remote.recompressed.get(part.key, trusted[part.key]) for part in plans)
    return base.PrebuiltBase(layers, remote.repository)


def previously_built_layers(lock: Lock, store: Store) -> dict[str, Layer]:
    """Return by key the layers that this store once built with the codec in use, whether it still has their blobs or
    not.

    For a registry's image, return the layers that were verified to unpack to their diff_ids.
    """
    base_layers, content = from_image(lock), lock.base.content
    keys = {layer.key for layer in base_layers}
    built = (previously_built(store, part.name, part.key) for part in plan_layers(lock) if part.key not in keys)
    layers_by_key = {layer.key: layer for layer in built if layer}
    for layer, locked in zip(base_layers, content.layers if content else (), strict=True):
        if base.verified(locked, store):
            layers_by_key[layer.key] = layer
    return layers_by_key


class LayerStack:
    """The layers of one image, added in any order."""

    def __init__(self, sources: Iterable[LayerSource]) -> None:
        sources = tuple(sources)
        self._keys = [source.plan.key for source in sources]
        self._layers = {source.plan.key: source.layer for source in sources if source.layer}
        self.remote = {source.plan.key for source in sources if source.origin is LayerOrigin.REMOTE}

    def add(self, layer: Layer) -> None:
        """Add a layer that is in the store."""
        self._layers[layer.key] = layer
        self.remote.discard(layer.key)

    def bottom(self) -> list[Layer]:
        """Return the layers below the first one that the store lacks."""
        local = self._layers.keys() - self.remote
        return [self._layers[key] for key in itertools.takewhile(local.__contains__, self._keys)]

    def layers(self) -> list[Layer]:
        """Return all layers, from the bottom up. Raises KeyError where one is missing."""
        return [self._layers[key] for key in self._keys]


def required_bytes(
    lock: Lock, missing: Sequence[LayerPlan], store: Store, prebuilt: base.PrebuiltBase | None = None
) -> int:
    """Estimate the bytes that building the `missing` layers takes in the store, with all that they are built of.

    A layer is estimated by its wheels; files in the store are not counted. `prebuilt` is the base if it need not be
    built.
    """
    if not missing:
        return 0
    sizes = {layer.key: layer.size for layer in lock.record.layers} if lock.record else {}
    total = base.needed(lock.base, store)
    total = min(total, prebuilt.required_bytes()) if prebuilt else total
    if added := lock.foundation.added:
        total += base.needed_packages(added, base.key(lock.base), store)
    if other := bytecode_base(lock):
        total += base.needed(other, store)
    total += _INTERPRETER_BYTES if lock.interpreter.file else 0
    for part in missing:
        total += sizes.get(part.key, sum(wheel.file.estimate for wheel in part.wheels))
        files = locked_files(map(plan_package, part.wheels)).values()
        total += sum(file.estimate for file in files if not store.has(file.digest, file.size))
    return total
