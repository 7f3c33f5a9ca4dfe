"""Find layers that a trusted attestation describes and the target registry already stores.

They are neither built nor pushed. Trusted sources are this store, for layers that it has built, and the signers that
the project names. An untrusted description could name a malicious layer under the hash of a harmless wheel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from imagegen.core.errors import FetchError, PublishError, TrustError
from imagegen.core.net import NotFoundError
from imagegen.core.progress import Progress
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.core.types import Compression
from imagegen.image.inventory.cell_subject import import_scans
from imagegen.image.layers import Layer, RemoteLayers, resolve_layers
from imagegen.image.layers.layers_document import LayersDocument, read_description
from imagegen.lock.model import Lock
from imagegen.oci.documents import Descriptor
from imagegen.publish.repository import RemoteRepository
from imagegen.publish.tags import CHANNELS, Tags, most_similar
from imagegen.trust.attach import VerificationResult, gather
from imagegen.trust.documents import FACT, LAYERS, Attached
from imagegen.trust.signers import Trust

_MAX_SCAN = 64 << 20  # bytes of a wheel scan, whose size is not known before it is fetched


class AttachmentReader:
    """Reads and verifies the attachments of each image once, since later ones are added by this run."""

    def __init__(self, trust: Trust, progress: Progress) -> None:
        self._trust, self._progress = trust, progress
        self._read: dict[tuple[str, str], VerificationResult] = {}

    def read(self, repository: RemoteRepository, digest: str) -> VerificationResult:
        """Return the verified attachments of an image by its digest; faults are printed. Raises FetchError."""
        key = repository.name, digest
        if key not in self._read:
            self._read[key] = gather(repository.reader, digest, self._trust)
            for fault in self._read[key].faults:
                self._progress.say(f"warning: {fault}")
        return self._read[key]


def find_remote_layers(
    lock: Lock,
    compression: Compression,
    repositories: Sequence[RemoteRepository],
    tags: Tags,
    attachments: AttachmentReader,
    store: Store,
    progress: Progress,
) -> RemoteLayers:
    """Return the layers missing in the store that are attested by a trusted signer and stored in `repositories[0]`.

    Layers that only the other repositories store are mounted from them. The images that `tags` and the most similar tag
    name may share layers with this image, so their attestations are read. If layers are used, the attested scans of the
    lock's wheels are written to the store.
    """
    resolved = resolve_layers(lock, store)
    missing = frozenset(source.plan.key for source in resolved.absent)
    if not missing:
        return RemoteLayers()
    layers = {source.plan.key: source.layer for source in resolved.sources if source.layer}
    gzip: dict[str, Layer] = {}
    scans: dict[str, tuple[RemoteRepository, str]] = {}
    required: Mapping[str, Layer] = layers if compression == "zstd" else gzip
    if not required.keys() >= missing:
        for repository, digest in _tagged(repositories, tags):
            with suppress(FetchError):  # layers of images that cannot be read are built
                for described in _attested(attachments.read(repository, digest).documents):
                    for key, layer in described.layers_by_key.items():
                        layers.setdefault(key, layer)
                    gzip |= _same_contents(described.gzip_by_key, layers)
                    for key, scan in described.facts.items():
                        scans.setdefault(key, (repository, scan))
            if required.keys() >= missing:
                break
    stored = stored_layers(repositories[0], {key: required[key] for key in missing & layers.keys() & required.keys()})
    if stored:
        message = f"{repositories[0].name} has {len(stored)} of {counted(len(missing), 'layer')} missing in this store"
        progress.say(message)
        import_remote_scans(lock, scans, store, progress)
    return RemoteLayers(
        repositories[0].reader,
        {key: layers[key] for key in stored},
        {key: gzip[key] for key in stored & gzip.keys()} if compression == "gzip" else {},
    )


def _same_contents(other: Mapping[str, Layer], layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """Return the `other` layers with the same diff_ids as `layers`, since another builder's layers may differ."""
    return {key: layer for key, layer in other.items() if key in layers and layers[key].diff_id == layer.diff_id}


def _tagged(repositories: Sequence[RemoteRepository], tags: Tags) -> Iterator[tuple[RemoteRepository, str]]:
    """Yield each image that the tags name in the repositories once. A repository that cannot be read is skipped.

    In the first repository the tag most similar to the immutable one counts too, since it may be newer than the mutable
    tags.
    """
    required = tuple(dict.fromkeys((tags.immutable, *tags.mutable, *CHANNELS)))
    for repository in repositories:
        digests: dict[str, None] = {}
        with suppress(FetchError, PublishError):
            near = most_similar(tags.immutable, repository.reader.tags()) if repository is repositories[0] else None
            for tag in (*required, *filter(None, [near])):
                if digest := repository.resolve_tag(tag):
                    digests[digest] = None
        images: dict[str, None] = {}
        for digest in digests:
            with suppress(FetchError):
                images |= dict.fromkeys(repository.images(digest))
        yield from ((repository, image) for image in images)


def _attested(documents: Sequence[Attached]) -> Iterator[LayersDocument]:
    """Yield the descriptions of layers that trusted signers attest."""
    for document in documents:
        if document.document.kind is LAYERS and document.signer is not None:
            with suppress(TrustError):  # a newer imagegen wrote it; its layers are built
                yield read_description(document.document.content)


def import_remote_scans(
    lock: Lock, scans: Mapping[str, tuple[RemoteRepository, str]], store: Store, progress: Progress
) -> None:
    """Write the attested wheel scans of the lock's wheels into the store; `scans` has repository and digest by key."""

    def fetch(key: str) -> bytes | None:
        repository, digest = scans[key]
        with suppress(NotFoundError):
            return repository.reader.document(Descriptor(FACT, digest, _MAX_SCAN), _MAX_SCAN)
        return None

    try:
        import_scans(lock, store, scans, fetch)
    except FetchError as error:
        progress.say(f"note: the wheels are scanned on this machine: {error}")


def stored_layers(repository: RemoteRepository, layers: Mapping[str, Layer]) -> frozenset[str]:
    """Return the keys of the layers that the repository has or mounts from another one. Raises PublishError."""
    present = repository.writer.present(layers.values())
    return frozenset(key for key, layer in layers.items() if layer.digest in present or repository.writer.link(layer))
