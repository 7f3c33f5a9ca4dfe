"""Layers that a worker publishes before its image is finished, for workers that make other images at the same time.

A worker attaches one signed statement to the keys of the layers that it has made and pushed: a key is the digest of a
layer's inputs, so another worker looks under the keys of the layers that it is about to make. Registries keep referrers
of digests that are no manifest (OCI distribution-spec v1.1, "Listing Referrers"). Nothing is locked, and nothing waits:
two workers that make one layer at once push the same blob, and each attaches its statement.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from imagegen.core.errors import FetchError, TrustError
from imagegen.core.oci import EMPTY_TYPE, MAX_LAYERS, Descriptor, digest_of
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.types import Digest
from imagegen.image.inventory.subjects import known_scans
from imagegen.image.layers import Layer
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.layer import PrintableName
from imagegen.image.layers.plan import LayerPlan, is_heavy, plan
from imagegen.image.layers.sources import plan_layers
from imagegen.plan.lock.model import Lock
from imagegen.supply.publish.repository import RemoteRepository, import_remote_scans, stored_layers
from imagegen.supply.trust.attach import attach_statement, gather
from imagegen.supply.trust.documents import FACT, FACTS, PREBUILT, Document
from imagegen.supply.trust.keys import Signer, Trust
from imagegen.supply.trust.statement import MAX_SUBJECTS

_AT_ONCE = 8  # requests


@dataclass(frozen=True)
class PrebuiltLayers:
    """A PREBUILT document: layers that a registry has, and the scans of their wheels, key -> digest of the bytes."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    codec: PrintableName
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    facts: Annotated[Mapping[Digest, Digest], Field(max_length=MAX_LAYERS)]


def read(data: bytes) -> PrebuiltLayers:
    """Parse a PREBUILT document. Raises TrustError for one that no imagegen has written."""
    try:
        return TypeAdapter(PrebuiltLayers).validate_json(data)
    except ValidationError as invalid:
        raise TrustError(
            "layers of another worker are described in a way that is not known",
            code="trust-prebuilt-unreadable",
            why=invalid.errors(include_url=False, include_input=False)[0]["msg"],
            fix="use the same version of imagegen for all workers",
        ) from invalid


def attest(
    layers: Sequence[Layer], lock: Lock, repository: RemoteRepository, store: Store, signer: Signer, trust: Trust,
    progress: Progress,
) -> None:  # fmt: skip
    """Push layers that the store has, and attach a statement about them to each one's key; see `as_recorded`.

    The scans of the wheels of `lock` go first, so that what the statement names is there. Raises PublishError,
    FetchError, StoreError, TrustError.
    """
    named = as_recorded(lock, layers)[:MAX_SUBJECTS]
    if not named:
        return
    with progress.meter(f"push to {repository.name}", sum(layer.size for layer in named)) as meter:
        repository.writer.upload_all(named, store, meter)
    subjects = [Descriptor(EMPTY_TYPE, layer.key, 0) for layer in named]
    scans = known_scans(lock, store)
    if scans:
        repository.writer.attach_all(subjects[0], FACTS, scans, FACT, {})
    document = PrebuiltLayers(CODEC, tuple(named), {key: digest_of(data) for key, data in scans.items()})
    content = json.dumps(asdict(document), sort_keys=True).encode()
    attach_statement(repository.writer, subjects, Document(PREBUILT, content), signer, trust)


def find(
    places: Mapping[str, Sequence[RemoteRepository]], lock: Lock, target: RemoteRepository, trust: Trust, store: Store,
    progress: Progress,
) -> dict[str, Layer]:  # fmt: skip
    """Return the layers that a trusted signer attests, and that the repository `target` has or mounts.

    `places` has the repositories in which each key is looked up; one that cannot be read has no layer. The store learns
    the attested scans of the lock's wheels. Raises PublishError.
    """

    def look(place: tuple[RemoteRepository, str]) -> list[tuple[RemoteRepository, PrebuiltLayers]]:
        repository, key = place
        found = []
        with suppress(FetchError):  # what cannot be read is made here
            for each in gather(repository.reader, key, trust).documents:
                if each.document.kind is PREBUILT and each.signer is not None:
                    with suppress(TrustError):
                        found.append((repository, read(each.document.content)))
        return found

    pairs = [(repository, key) for key, repositories in sorted(places.items()) for repository in repositories]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="prebuilt") as pool:
        documents = list(itertools.chain.from_iterable(pool.map(look, pairs)))
    layers: dict[str, Layer] = {}
    scans: dict[str, tuple[RemoteRepository, str]] = {}
    for repository, document in documents:
        if document.codec == CODEC:
            layers |= {layer.key: layer for layer in document.layers if layer.key in places}
            scans |= {key: (repository, digest) for key, digest in document.facts.items()}
    kept = {layer.key: layer for layer in as_recorded(lock, layers.values())}
    there = stored_layers(target, kept)
    if there:
        import_remote_scans(lock, scans, store, progress)
    return {key: kept[key] for key in sorted(there)}


def as_recorded(lock: Lock, layers: Iterable[Layer]) -> list[Layer]:
    """Return the layers without those that unpack to other bytes than the lock's record names.

    A build with such a layer fails; the others could not go on while it is attested.
    """
    recorded = {layer.key: layer.diff_id for layer in lock.record.layers} if lock.record else {}
    return [layer for layer in layers if recorded.get(layer.key, layer.diff_id) == layer.diff_id]


# Deal the layers of images among the workers of their cells.


@dataclass(frozen=True)
class Shares:
    """The missing layers of an image, in the order in which its worker makes them.

    `mine` are layers that other images need too and that this worker makes for all; `own` are those of this image
    alone; `theirs` are those that other workers make for all.
    """

    mine: tuple[LayerPlan, ...]
    own: tuple[LayerPlan, ...]
    theirs: tuple[LayerPlan, ...]


def share(missing: Sequence[LayerPlan], cell: str, locks: Mapping[str, Lock]) -> Shares:
    """Deal the missing layers of a cell among the workers of all cells in `locks`, which every worker has alike.

    A layer of one heavy wheel that several of these locks name is made by one of their cells: from the heaviest wheel
    down, by the one with the fewest bytes so far. A layer with other wheels than in the cell's own lock counts as the
    one of the same name there, since an update reaches all cells that share it.
    """
    users: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    names: dict[str, str] = {}
    for other, lock in sorted(locks.items()):
        for part in plan(lock):
            if _is_shared(part):
                users.setdefault(part.key, []).append(other)
                sizes[part.key] = part.wheels[0].file.estimate
                if other == cell:
                    names[part.name] = part.key
    load = dict.fromkeys(locks, 0)
    makers: dict[str, str] = {}
    for key in sorted(users, key=lambda key: (-sizes[key], key)):
        makers[key] = min(users[key], key=lambda user: (load[user], user))
        load[makers[key]] += sizes[key]
    order = sorted(locks)
    turn = {other: (order.index(other) - order.index(cell)) % len(order) for other in order} if cell in locks else {}

    def maker(part: LayerPlan) -> str | None:
        key = names.get(part.name) if _is_shared(part) else None
        return makers[key] if key and len(users[key]) > 1 else None

    theirs = [part for part in missing if maker(part) not in (None, cell)]
    return Shares(
        tuple(part for part in missing if maker(part) == cell),
        tuple(part for part in missing if maker(part) is None),
        tuple(sorted(theirs, key=lambda part: (turn[str(maker(part))], part.name))),
    )


def images_by_layer(locks: Iterable[Lock]) -> dict[str, set[str]]:
    """Return the images that have a layer of each name: an update may have changed its wheels, and so its key."""
    images: dict[str, set[str]] = {}
    for lock in locks:
        for part in plan_layers(lock):
            images.setdefault(part.name, set()).add(lock.image)
    return images


def _is_shared(part: LayerPlan) -> bool:
    return len(part.wheels) == 1 and is_heavy(part.wheels[0])
