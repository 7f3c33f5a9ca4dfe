"""Push an image to a repository, move its tags together, and find layers that the repository has.

A registry moves one tag at a time and has no transaction. So the digest of each tag is read first, and stored with its
manifest's bytes. Then the tags move, and a failure moves them back. A killed run leaves the journal, and the next run
with this store begins by rolling back. A tag that did not exist before stays, because its image is smoke-tested, and
many registries cannot delete a tag.

At every moment each tag names a complete manifest, either the previous or the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from imagegen.core.errors import FetchError, ImagegenError, PublishError, StoreError, TrustError
from imagegen.core.net import NotFoundError
from imagegen.core.oci import INDEX_TYPE, MANIFEST_TYPE, Descriptor, read_images
from imagegen.core.progress import Progress, human
from imagegen.core.registry import PushTarget, Reference, Repository
from imagegen.core.registry.push import BlobTotals, PushTotals
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.core.text import counted
from imagegen.core.types import Compression
from imagegen.image.inventory.subjects import import_scans
from imagegen.image.layers import Image, Layer, LayerOrigin, RemoteLayers, resolve_layers
from imagegen.image.layers.image import LayersDocument, read_description
from imagegen.image.layers.plan import digest_of_json
from imagegen.image.layers.sources import previously_built_layers
from imagegen.plan.lock.model import Lock
from imagegen.supply.publish.tags import CHANNELS, Tags, most_similar
from imagegen.supply.trust.attach import VerificationResult, gather
from imagegen.supply.trust.documents import FACT, LAYERS, Attached
from imagegen.supply.trust.signers import Trust


@dataclass(frozen=True)
class TaggedManifest:
    """A manifest or an index that a tag names; its bytes are in the store."""

    digest: str
    media_type: str


@dataclass(frozen=True)
class RemoteRepository:
    """A repository with its writer and its reader."""

    reference: Reference
    writer: PushTarget
    reader: Repository

    @property
    def name(self) -> str:
        return self.reference.name

    def resolve_tag(self, tag: str) -> str | None:
        """Return the digest that the tag names; None if it does not exist.

        The request uses write access, because many registries deny anonymous access to a repository that does not
        exist. Raises PublishError, FetchError.
        """
        digest = self.writer.manifest(tag)
        return self.reader.manifest(tag)[0] if digest == "" else digest

    def images(self, digest: str) -> Iterator[str]:
        """Yield the digests of the images of an index, or of the only image. Raises FetchError."""
        _, data, kind = self.reader.manifest(digest)
        images = read_images(data, kind, f"{self.name}@{digest}")
        yield from [digest] if images is None else (image.digest for _, image in images)

    def fetch_manifest(self, digest: str, store: Store) -> TaggedManifest:
        """Fetch the manifest with this digest into the store."""
        _, data, media_type = self.reader.manifest(digest)
        store.write(data)
        return TaggedManifest(digest, media_type)


@dataclass(frozen=True)
class TagMove:
    """A move of tags to the manifest `to`; `before` maps each tag to the manifest that it named."""

    repository: str
    to: str
    before: Mapping[str, TaggedManifest | None]


_MOVES = Cache("publishing", TagMove)


def move_tags(
    repository: RemoteRepository, store: Store, to: TaggedManifest, tags: Sequence[str], progress: Progress
) -> dict[str, str | None]:
    """Move the tags to the manifest `to`; return the previous digest of each tag that moved.

    After an error, tags that have moved are moved back, and the error is raised.
    """
    moved = {tag: old for tag in tags if (old := repository.resolve_tag(tag)) != to.digest}
    if not moved:
        return {}
    previous = {digest: repository.fetch_manifest(digest, store) for digest in dict.fromkeys(moved.values()) if digest}
    before = {tag: previous[digest] if digest else None for tag, digest in moved.items()}
    journal = TagMove(repository.name, to.digest, before)
    _MOVES.put(store, _key(repository.name), journal)
    try:
        data = store.read(to.digest)
        for tag in before:
            repository.writer.put(data, to.media_type, tag)
    except BaseException as error:
        failed = _roll_back(repository, store, journal, progress)
        if isinstance(error, PublishError) and not failed:
            error.fix = error.fix or "no tag has moved; run the same command again"
        raise
    _clear(store, repository.name)
    wider = [
        tag for tag, old in before.items() if old and (old.media_type, to.media_type) == (INDEX_TYPE, MANIFEST_TYPE)
    ]
    if wider:
        progress.say(
            f"NOTE: {', '.join(wider)} named an index of several platforms; `--platform all` publishes an index"
        )
    return moved


def recover(repository: RemoteRepository, store: Store, progress: Progress) -> None:
    """Roll back the tags that an interrupted run has moved. Raises PublishError if that fails."""
    journal = _MOVES.get(store, _key(repository.name))
    if journal is None:
        return
    if all(repository.resolve_tag(tag) == journal.to for tag in journal.before):
        _clear(store, repository.name)  # all had moved
        return
    progress.say(f"{repository.name}: an earlier run was interrupted while it moved tags")
    if failed := _roll_back(repository, store, journal, progress):
        summary = f"{repository.name}: {counted(len(failed), 'tag')} that an earlier run had moved cannot be moved back"
        raise PublishError(
            summary, code="publish-rollback-failed", why=", ".join(failed), fix="run the same command again"
        )


def _roll_back(repository: RemoteRepository, store: Store, journal: TagMove, progress: Progress) -> list[str]:
    """Move tags that name the new image back, remove the journal, and return the tags that could not be moved.

    A tag that another run has moved in the meantime is not changed.
    """
    failed = []
    for tag, old in journal.before.items():
        try:
            if old is not None and repository.resolve_tag(tag) == journal.to:
                if (data := _manifest_bytes(repository, store, old.digest)) is None:
                    progress.say(f"{repository.name}:{tag} is not moved back because {old.digest} was deleted")
                    continue
                repository.writer.put(data, old.media_type, tag)
                progress.say(f"{repository.name}:{tag} was moved back to {old.digest}")
        except ImagegenError:
            failed.append(tag)
    if failed:
        summary = f"{', '.join(failed)} may name the new image"
        progress.say(f"{repository.name}: {summary}; run the same command again to roll back")
    else:
        _clear(store, repository.name)
    return failed


def _manifest_bytes(repository: RemoteRepository, store: Store, digest: str) -> bytes | None:
    """Return a manifest from the store, else from the registry; None if neither has it."""
    with suppress(StoreError):
        return store.read(digest)
    try:
        return repository.reader.manifest(digest)[1]
    except NotFoundError:
        return None


def _key(repository: str) -> str:
    return digest_of_json(["repository", repository])


def _clear(store: Store, repository: str) -> None:
    with suppress(ImagegenError):  # a store that cannot be written has no journal
        _MOVES.forget(store, _key(repository))


# Push the missing blobs of an image to a repository, then its manifest by digest, without a tag.


def push(image: Image, repository: RemoteRepository, store: Store, progress: Progress) -> PushTotals:
    """Push the image to the repository. Raises PublishError, and StoreError for a blob that cannot be found.

    The first error cancels the other uploads and closes the client.
    """
    blobs = image.blobs
    present = repository.writer.present(blobs)
    missing = [blob for blob in blobs if blob.digest not in present]
    if lost := [blob for blob in missing if not store.has(blob.digest, blob.size) and not repository.writer.link(blob)]:
        summary = f"{counted(len(lost), 'layer')} are neither in {repository.name} nor in the store"
        fix = "run the same command again to build them"
        raise StoreError(summary, code="store-blobs-missing", why=", ".join(blob.digest for blob in lost), fix=fix)
    remote = BlobTotals(len(present), sum(blob.size for blob in blobs if blob.digest in present))
    moved = PushTotals(remote, BlobTotals(), BlobTotals())
    if missing:
        with progress.meter(f"push to {repository.name}", sum(blob.size for blob in missing)) as meter:
            uploaded = repository.writer.upload_all(missing, store, meter)
        remote = BlobTotals(remote.blobs + uploaded.there.blobs, remote.size + uploaded.there.size)
        moved = PushTotals(remote, uploaded.mounted, uploaded.sent)
    repository.writer.put(image.manifest, MANIFEST_TYPE)
    return moved


def format_summary(moved: PushTotals) -> str:
    """Return a summary for human readers: "12.0 MB sent, 3.10 GB already there"."""
    mounted = f", {human(moved.mounted.size)} mounted from a sibling repository" if moved.mounted.blobs else ""
    return f"{human(moved.sent.size)} sent{mounted}, {human(moved.there.size)} already there"


# Find layers that a trusted attestation describes and the target registry already stores.
#
# They are neither built nor pushed. Trusted sources are this store, for layers that it has built, and the signers that
# the project names. An untrusted description could name a malicious layer under the hash of a harmless wheel.

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
    missing = frozenset(source.plan.key for source in resolve_layers(lock, store) if source.origin is LayerOrigin.BUILD)
    if not missing:
        return RemoteLayers()
    layers: dict[str, Layer] = dict(previously_built_layers(lock, store))
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
