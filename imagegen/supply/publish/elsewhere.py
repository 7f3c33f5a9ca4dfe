"""Layers that need be neither made nor sent: somebody who is believed says what they are, and the registry has them.

Believed is this store, of what it once made, and whoever the project names, of what they attest. Anybody else could
put another layer's digest under the hash of an honest wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from imagegen.core.errors import FetchError, PublishError, TrustError
from imagegen.core.net import NotFoundError
from imagegen.core.progress import Progress
from imagegen.core.registry.image import Descriptor
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.inventory import carried
from imagegen.image.layers import Layer, describe, foundation, reuse
from imagegen.image.layers.layer import known
from imagegen.image.layers.plan import plan
from imagegen.plan.lock.model import Lock
from imagegen.supply.publish.journal import Place
from imagegen.supply.publish.tags import CHANNELS, Compression, Tags, akin
from imagegen.supply.trust.documents import FACT, LAYERS, Attached

_MAX_FACT = 64 << 20  # bytes; nobody says how many one has

Said = Callable[[Place, str], Sequence[Attached]]  # what is said of an image, by its digest


@dataclass(frozen=True)
class Elsewhere:
    """Layers by their key that the repository has; `packed` are the same ones as gzip, where those are wanted."""

    layers: Mapping[str, Layer] = field(default_factory=dict)
    packed: Mapping[str, Layer] = field(default_factory=dict)


def find(
    lock: Lock,
    compression: Compression,
    places: Sequence[Place],
    tags: Tags,
    said: Said,
    store: Store,
    progress: Progress,
) -> Elsewhere:
    """Of the layers that are not in the store, those that somebody believed knows and the first of `places` has.

    The others of `places` lie beside it: what they have is linked. The image's `tags`, and that of one
    most like it, name images whose layers may be the same.
    """
    missing = _missing(lock, store)
    if not missing:
        return Elsewhere()
    layers: dict[str, Layer] = dict(reuse.remembered(lock, store))
    packed: dict[str, Layer] = {}
    facts: dict[str, tuple[Place, str]] = {}
    if compression == "gzip" or not layers.keys() >= missing:
        for place, digest in _standing(places, tags):
            with suppress(FetchError):  # what may not be read is made here
                for described in _attested(said(place, digest)):
                    layers = described.elsewhere | layers
                    packed |= _fitting(described.packed, layers)
                    facts = {key: (place, fact) for key, fact in described.facts.items()} | facts
            if (packed if compression == "gzip" else layers).keys() >= missing:
                break
    wanted = packed if compression == "gzip" else layers
    there = _there(places[0], {key: layer for key, layer in wanted.items() if key in missing & layers.keys()})
    if there:
        progress.say(f"{places[0].name} has {len(there)} of {counted(len(missing), 'layer')} that this store has not")
        _learn(lock, facts, store, progress)
    if compression == "gzip":
        return Elsewhere({key: layers[key] for key in there}, {key: packed[key] for key in there})
    return Elsewhere({key: layers[key] for key in there})


def _fitting(packed: Mapping[str, Layer], layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """The gzip layers of the very contents that are taken: somebody else's may have come out otherwise."""
    return {key: layer for key, layer in packed.items() if key in layers and layers[key].diff_id == layer.diff_id}


def _missing(lock: Lock, store: Store) -> frozenset[str]:
    """Keys of the image's layers that are not in the store."""
    here = {layer.key for layer in foundation.known_layers(lock, store)}
    parts = plan(lock)
    here |= {part.key for part in parts if known(store, part.name, part.key)}
    return frozenset([*foundation.names(lock), *(part.key for part in parts)]) - here


def _standing(places: Sequence[Place], tags: Tags) -> Iterator[tuple[Place, str]]:
    """The images that the tags name in each of the places, each once. A place that may not be read has none.

    In the image's own place there may be a newer one, most like it, to which no tag has moved.
    """
    wanted = tuple(dict.fromkeys((tags.fixed, *tags.moving, *CHANNELS)))
    for place in places:
        found: dict[str, None] = {}
        with suppress(FetchError, PublishError):
            near = akin(tags.fixed, place.repository.tags()) if place is places[0] else None
            for tag in (*wanted, *filter(None, [near])):
                if digest := place.standing(tag):
                    found[digest] = None
        yield from ((place, digest) for digest in found)


def _attested(documents: Sequence[Attached]) -> Iterator[describe.Described]:
    """What somebody trusted says of an image's layers."""
    for each in documents:
        if each.document.kind is LAYERS and each.signer is not None:
            with suppress(TrustError):  # of a newer imagegen: then its layers are made here
                yield describe.read(each.document.content)


def _learn(lock: Lock, facts: Mapping[str, tuple[Place, str]], store: Store, progress: Progress) -> None:
    """Let the store know what somebody trusted knows of the lock's wheels: by its key, where it is and its digest."""

    def bring(key: str) -> bytes | None:
        place, digest = facts[key]
        with suppress(NotFoundError):
            return place.repository.document(Descriptor(FACT, digest, _MAX_FACT), _MAX_FACT)
        return None

    try:
        carried.take(lock, store, facts, bring)
    except FetchError as error:
        progress.say(f"note: what is known of the wheels is learned from them: {error}")


def _there(place: Place, layers: Mapping[str, Layer]) -> frozenset[str]:
    """Keys of those that the repository has, or gets linked from one beside it. Raises PublishError."""
    blobs = {key: Descriptor(layer.media_type, layer.digest, layer.size) for key, layer in layers.items()}
    present = place.target.present(blobs.values())
    return frozenset(key for key, blob in blobs.items() if blob.digest in present or place.target.link(blob))
