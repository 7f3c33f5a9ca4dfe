"""The layers under the stack: Debian's packages as one, those of a registry's image as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from imagegen import base, registry
from imagegen.config import Settings
from imagegen.layers.layer import Layer, base_layer, known
from imagegen.layers.plan import digest_of_json
from imagegen.lock.model import Lock
from imagegen.progress import Progress
from imagegen.store import Store


def keys(lock: Lock) -> list[str]:
    """The keys of the base's layers, from the bottom up."""
    return [layer.key for layer in taken(lock)] or [base.key(lock.base)]


def known_layers(lock: Lock, store: Store) -> list[Layer]:
    """Those that the store has, all or none: what one lacks, `layers` brings with the others."""
    if own := taken(lock):
        return [] if base.missing(lock.base, store) else own
    layer = known(store, "base", base.key(lock.base))
    return [layer] if layer else []


def named(lock: Lock, elsewhere: Mapping[str, Layer]) -> list[Layer]:
    """Those `elsewhere`; of a registry's image, those that are there as the lock has them.

    Their key says what they unpack to, and not that the lock's digest is of a blob that does.
    """
    if own := taken(lock):
        return [layer for layer in own if layer.key in elsewhere and elsewhere[layer.key].digest == layer.digest]
    key = base.key(lock.base)
    return [replace(elsewhere[key], name="base", key=key)] if key in elsewhere else []


def made(lock: Lock, elsewhere: Mapping[str, Layer], bring: base.Bring | None) -> base.Made | None:
    """The base as it is `elsewhere`, where all of it is there and can be brought."""
    theirs = named(lock, elsewhere)
    if bring is None or len(theirs) < len(keys(lock)):
        return None
    return base.Made(
        tuple(registry.Layer(each.media_type, each.digest, each.size, each.diff_id) for each in theirs), bring
    )


def layers(lock: Lock, store: Store, settings: Settings, progress: Progress) -> Sequence[Layer]:
    """The base's layers, in the store. Raises BaseError, FetchError."""
    if own := taken(lock):
        base.fetch_layers(lock.base, store, settings, progress)
        return own
    if layers := known_layers(lock, store):
        return layers
    return [base_layer(store, base.key(lock.base), base.build(lock.base, store, settings, progress).diff_id)]


def taken(lock: Lock) -> list[Layer]:
    """The layers of a registry's image; none of another base. One that comes twice has two keys: it is there twice."""
    found = enumerate(lock.base.content.layers if lock.base.content else (), 1)
    return [
        Layer(
            f"base-{number}",
            digest_of_json(["registry", number, layer.diff_id]),
            layer.diff_id,
            layer.digest,
            layer.size,
            None,
            layer.oci_type,
        )
        for number, layer in found
    ]
