"""Decide where each layer of an image comes from, before anything is fetched or built."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from imagegen.core.store import Store
from imagegen.image import base
from imagegen.image.file_tree import bytecode_base
from imagegen.image.layers import ownership
from imagegen.image.layers.base_layers import from_image, plan_base
from imagegen.image.layers.layer import Layer, LayerOrigin, LayerSource, previously_built
from imagegen.image.layers.plan import INTERPRETER, LayerPlan, plan
from imagegen.lock.artifacts import locked_files, plan_package
from imagegen.lock.model import Lock
from imagegen.oci import registry
from imagegen.oci.documents import ZSTD_TYPE

_INTERPRETER_BYTES = 300 << 20  # estimate for a standalone interpreter's archive, its files and its layer


@dataclass(frozen=True)
class RemoteLayers:
    """Layers by key that a trusted attestation describes.

    `repository` stores them, or, if `recompressed` has the key, the same layer in another compression.
    """

    repository: registry.Repository | None = None
    layers: Mapping[str, Layer] = field(default_factory=dict)
    recompressed: Mapping[str, Layer] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedLayers:
    """The source of every layer of a lock's image, from the bottom up.

    `prebuilt` is the base with its packages in a trusted repository, if the store would have to build or fetch it.
    """

    lock: Lock
    sources: tuple[LayerSource, ...]
    prebuilt: base.PrebuiltBase | None = None

    @property
    def absent(self) -> list[LayerSource]:
        """The layers that must be fetched or built."""
        return [source for source in self.sources if source.is_absent]

    @cached_property
    def base_keys(self) -> frozenset[str]:
        """The keys of the layers under the venv."""
        return frozenset(part.key for part in plan_base(self.lock))

    @property
    def absent_base(self) -> list[LayerSource]:
        """The absent layers under the venv."""
        return [source for source in self.absent if source.plan.key in self.base_keys]

    @property
    def absent_stack(self) -> list[LayerPlan]:
        """The absent layers from the venv up."""
        return [source.plan for source in self.absent if source.plan.key not in self.base_keys]


def plan_layers(lock: Lock) -> tuple[LayerPlan, ...]:
    """Return the plan of every layer of the lock's image, from the bottom up."""
    return (*plan_base(lock), *plan(lock))


def resolve_layers(
    lock: Lock, store: Store, remote: RemoteLayers | None = None, plans: Sequence[LayerPlan] | None = None
) -> ResolvedLayers:
    """Return the source of every layer, or of those in `plans`. Prefer the store, then `remote`, then a fetch or build.

    A remote layer of wheels is used only where the scans of its wheels are known, since files that two packages own
    are found with them.
    """
    plans = plan_layers(lock) if plans is None else plans
    fetched = {layer.key: layer for layer in from_image(lock)}
    previous = previously_built_layers(lock, store, plans)
    trusted = _trusted(plans, fetched, remote.layers) if remote else {}
    sources = []
    for part in plans:
        source = _local_source(part, previous.get(part.key), fetched, store)
        layer = trusted.get(part.key) if source.is_absent else None
        if layer and all(ownership.known(store, wheel, lock.python) is not None for wheel in part.wheels):
            source = LayerSource(part, LayerOrigin.REMOTE, layer)
        sources.append(source)
    return ResolvedLayers(lock, tuple(sources), _prebuilt_base(lock, store, trusted, remote) if remote else None)


def resolve_recorded(lock: Lock, store: Store) -> tuple[LayerSource, ...]:
    """Return the source of every layer that the lock records, from the bottom up; its wheels need not be compiled."""
    fetched = {layer.key for layer in from_image(lock)}
    return tuple(
        _local_source(LayerPlan(layer.name, (), layer.key), layer, fetched, store) for layer in recorded_layers(lock)
    )


def _local_source(part: LayerPlan, layer: Layer | None, fetched: Collection[str], store: Store) -> LayerSource:
    """Return the source without remote layers; `fetched` are the keys of the layers of a registry's image."""
    if layer and store.has(layer.digest, layer.size):
        return LayerSource(part, LayerOrigin.STORE, layer)
    return LayerSource(part, LayerOrigin.FETCH if part.key in fetched else LayerOrigin.BUILD, layer)


def _trusted(plans: Sequence[LayerPlan], fetched: Mapping[str, Layer], layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """Return by key the layers that the image needs; of a registry's image, those with the locked digest.

    The key of such a layer names what it unpacks to, not the blob.
    """
    return {
        part.key: fetched.get(part.key) or replace(layers[part.key], name=part.name, key=part.key)
        for part in plans
        if part.key in layers and (part.key not in fetched or fetched[part.key].digest == layers[part.key].digest)
    }


def _prebuilt_base(
    lock: Lock, store: Store, trusted: Mapping[str, Layer], remote: RemoteLayers
) -> base.PrebuiltBase | None:
    plans = [part for part in plan_base(lock) if part.name != INTERPRETER]
    if remote.repository is None or not all(part.key in trusted for part in plans):
        return None
    added, key = lock.foundation.added, base.key(lock.base)
    if not (base.needed_packages(added, key, store) if added else base.needed(lock.base, store)):
        return None
    layers = tuple(remote.recompressed.get(part.key, trusted[part.key]) for part in plans)
    return base.PrebuiltBase(layers, remote.repository)


def previously_built_layers(lock: Lock, store: Store, plans: Sequence[LayerPlan] | None = None) -> dict[str, Layer]:
    """Return by key the layers that this store once built with the codec in use, whether it still has their blobs or
    not.

    For a registry's image, return the layers that were verified to unpack to their diff_ids.
    """
    plans = plan_layers(lock) if plans is None else plans
    base_layers, content = from_image(lock), lock.base.content
    keys = {layer.key for layer in base_layers}
    built = (previously_built(store, part.name, part.key) for part in plans if part.key not in keys)
    layers_by_key = {layer.key: layer for layer in built if layer}
    for layer, locked in zip(base_layers, content.layers if content else (), strict=True):
        if base.verified(locked, store):
            layers_by_key[layer.key] = layer
    return layers_by_key


def recorded_layers(lock: Lock) -> list[Layer]:
    """Return the layers that the lock records, from the bottom up."""
    types = {layer.digest: layer.media_type for layer in from_image(lock)}
    recorded = lock.record.layers if lock.record else ()
    return [
        Layer(types.get(layer.digest, ZSTD_TYPE), layer.digest, layer.size, layer.diff_id, layer.name, layer.key)
        for layer in recorded
    ]


class LayerStack:
    """The layers of one image, added in any order."""

    def __init__(self, resolved: ResolvedLayers) -> None:
        sources = resolved.sources
        self._keys = [source.plan.key for source in sources]
        self._layers = {source.plan.key: source.layer for source in sources if source.layer and not source.is_absent}
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


def required_bytes(resolved: ResolvedLayers, store: Store) -> int:
    """Estimate the bytes that building the absent layers of wheels takes in the store, with all that they are built of.

    A layer is estimated by its wheels; files in the store are not counted.
    """
    lock, missing = resolved.lock, resolved.absent_stack
    if not missing:
        return 0
    sizes = {layer.key: layer.size for layer in lock.record.layers} if lock.record else {}
    total = base.needed(lock.base, store)
    total = min(total, resolved.prebuilt.required_bytes()) if resolved.prebuilt else total
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
