"""Publish layers before their image is finished, for workers that build other images at the same time.

A worker attaches one signed statement to the keys of the layers that it has built and pushed. A key is the digest of a
layer's inputs, so another worker looks up the keys of the layers that it needs. Registries store referrers of digests
that are not manifests (OCI distribution-spec v1.1, "Listing Referrers"). Workers do not lock or wait. If two workers
build one layer at the same time, they push the same blob, and each attaches its statement.
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
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.types import Digest
from imagegen.image.inventory.cell_subject import known_scans
from imagegen.image.layers import Layer
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.layer import PrintableName
from imagegen.lock.model import Lock
from imagegen.oci.documents import EMPTY_TYPE, MAX_LAYERS, Descriptor, digest_of
from imagegen.publish.remote_layers import import_remote_scans, stored_layers
from imagegen.publish.repository import RemoteRepository
from imagegen.trust.attach import attach_statement, gather
from imagegen.trust.documents import FACT, FACTS, PREBUILT, Document
from imagegen.trust.signers import Signer, Trust
from imagegen.trust.statement import MAX_SUBJECTS

_AT_ONCE = 8  # requests


@dataclass(frozen=True)
class PrebuiltLayers:
    """A PREBUILT document, with layers in a registry and the scans of their wheels (digest of the bytes by key)."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    codec: PrintableName
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    facts: Annotated[Mapping[Digest, Digest], Field(max_length=MAX_LAYERS)]


def read(data: bytes) -> PrebuiltLayers:
    """Parse a PREBUILT document. Raises TrustError if its format is not known."""
    try:
        return TypeAdapter(PrebuiltLayers).validate_json(data)
    except ValidationError as invalid:
        raise TrustError(
            "the format of another worker's layer list is not known",
            code="trust-prebuilt-unreadable",
            why=invalid.errors(include_url=False, include_input=False)[0]["msg"],
            fix="use the same version of imagegen for all workers",
        ) from invalid


def attest(
    layers: Sequence[Layer], lock: Lock, repository: RemoteRepository, store: Store, signer: Signer, trust: Trust,
    progress: Progress,
) -> None:  # fmt: skip
    """Push layers of the store, and attach a statement about them to each layer's key; see `matching_layers`.

    The scans of the wheels of `lock` are pushed first, because the statement names them. Raises PublishError,
    FetchError, StoreError, TrustError.
    """
    recorded_layers = matching_layers(lock, layers)[:MAX_SUBJECTS]
    if not recorded_layers:
        return
    with progress.meter(f"push to {repository.name}", sum(layer.size for layer in recorded_layers)) as meter:
        repository.writer.upload_all(recorded_layers, store, meter)
    subjects = [Descriptor(EMPTY_TYPE, layer.key, 0) for layer in recorded_layers]
    scans = known_scans(lock, store)
    if scans:
        repository.writer.attach_all(subjects[0], FACTS, scans, FACT, {})
    document = PrebuiltLayers(CODEC, tuple(recorded_layers), {key: digest_of(data) for key, data in scans.items()})
    content = json.dumps(asdict(document), sort_keys=True).encode()
    attach_statement(repository.writer, subjects, Document(PREBUILT, content), signer, trust)


def find(
    repositories_by_key: Mapping[str, Sequence[RemoteRepository]],
    lock: Lock,
    target: RemoteRepository,
    trust: Trust,
    store: Store,
    progress: Progress,
) -> dict[str, Layer]:
    """Return the layers that a trusted signer attests, and that the repository `target` has or mounts.

    Each key is looked up in its repositories in `repositories_by_key`; a repository that cannot be read is skipped. The
    attested scans of the lock's wheels are written to the store. Raises PublishError.
    """

    def look_up(item: tuple[RemoteRepository, str]) -> list[tuple[RemoteRepository, PrebuiltLayers]]:
        repository, key = item
        results = []
        with suppress(FetchError):  # layers that cannot be read are built
            for attached in gather(repository.reader, key, trust).documents:
                if attached.document.kind is PREBUILT and attached.signer is not None:
                    with suppress(TrustError):
                        results.append((repository, read(attached.document.content)))
        return results

    pairs = [
        (repository, key) for key, repositories in sorted(repositories_by_key.items()) for repository in repositories
    ]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="prebuilt") as pool:
        documents = list(itertools.chain.from_iterable(pool.map(look_up, pairs)))
    layers: dict[str, Layer] = {}
    scans: dict[str, tuple[RemoteRepository, str]] = {}
    for repository, document in documents:
        if document.codec == CODEC:
            layers |= {layer.key: layer for layer in document.layers if layer.key in repositories_by_key}
            scans |= {key: (repository, digest) for key, digest in document.facts.items()}
    matching = {layer.key: layer for layer in matching_layers(lock, layers.values())}
    remote_keys = stored_layers(target, matching)
    if remote_keys:
        import_remote_scans(lock, scans, store, progress)
    return {key: matching[key] for key in sorted(remote_keys)}


def matching_layers(lock: Lock, layers: Iterable[Layer]) -> list[Layer]:
    """Return the layers whose diff_ids do not differ from the lock's record.

    A build with another layer fails, and other workers would use it while it is attested.
    """
    recorded = {layer.key: layer.diff_id for layer in lock.record.layers} if lock.record else {}
    return [layer for layer in layers if recorded.get(layer.key, layer.diff_id) == layer.diff_id]
