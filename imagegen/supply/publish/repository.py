"""The repository that an image is published to: push, move tags together, find the layers that are there.

A registry moves one tag at a time and has no transaction. So the digest of each tag is read first, and kept in the
store with its manifest's bytes; then the tags move; a failure moves them back. A killed run leaves the journal, and the
next run of this store begins by rolling back. A tag that did not exist before stays: its image is smoke-tested, and
many registries cannot delete a tag.

At every moment each tag names a manifest that the registry has whole: either the previous or the new one.
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
from imagegen.supply.trust.keys import Trust


@dataclass(frozen=True)
class TaggedManifest:
    """A manifest or an index as a tag names it; its bytes are in the store."""

    digest: str
    media_type: str


@dataclass(frozen=True)
class RemoteRepository:
    """A repository, to write to and to read from."""

    reference: Reference
    writer: PushTarget
    reader: Repository

    @property
    def name(self) -> str:
        return self.reference.name

    def resolve_tag(self, tag: str) -> str | None:
        """Return the digest that the tag names; None if it does not exist.

        The request uses write access: many registries deny others to read what does not exist yet. Raises PublishError,
        FetchError.
        """
        found = self.writer.manifest(tag)
        return self.reader.manifest(tag)[0] if found == "" else found

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
    """Move the tags to the manifest `to`; return what each tag that moved named before.

    Raises what went wrong, after putting back what had moved already.
    """
    named = {tag: found for tag in tags if (found := repository.resolve_tag(tag)) != to.digest}
    if not named:
        return {}
    previous = {digest: repository.fetch_manifest(digest, store) for digest in dict.fromkeys(named.values()) if digest}
    before = {tag: previous[digest] if digest else None for tag, digest in named.items()}
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
            f"NOTE: {', '.join(wider)} named an index of several platforms: `--platform all` publishes one again"
        )
    return named


def recover(repository: RemoteRepository, store: Store, progress: Progress) -> None:
    """Roll back the tags that an interrupted run moved in part. Raises PublishError where that fails."""
    journal = _MOVES.get(store, _key(repository.name))
    if journal is None:
        return
    if all(repository.resolve_tag(tag) == journal.to for tag in journal.before):
        _clear(store, repository.name)  # all had moved
        return
    progress.say(f"{repository.name}: an earlier run was ended while it moved tags")
    if failed := _roll_back(repository, store, journal, progress):
        what = f"{repository.name}: {counted(len(failed), 'tag')} that an earlier run had moved cannot be put back"
        raise PublishError(
            what, code="publish-rollback-failed", why=", ".join(failed), fix="the same command again tries it again"
        )


def _roll_back(repository: RemoteRepository, store: Store, journal: TagMove, progress: Progress) -> list[str]:
    """Move tags that name the new image back, remove the journal, and return the tags that could not be moved.

    A tag that another run has moved meanwhile stays.
    """
    failed = []
    for tag, old in journal.before.items():
        try:
            if old is not None and repository.resolve_tag(tag) == journal.to:
                if (data := _manifest_bytes(repository, store, old.digest)) is None:
                    progress.say(f"{repository.name}:{tag} stays: the manifest that it named, {old.digest}, is gone")
                    continue
                repository.writer.put(data, old.media_type, tag)
                progress.say(f"{repository.name}:{tag} is back at {old.digest}")
        except ImagegenError:
            failed.append(tag)
    if failed:
        what = f"{', '.join(failed)} may name the new image already"
        progress.say(f"{repository.name}: {what}; the same command again rolls back")
    else:
        _clear(store, repository.name)
    return failed


def _manifest_bytes(repository: RemoteRepository, store: Store, digest: str) -> bytes | None:
    """Return a manifest from the store, else from the registry; None where neither has it."""
    with suppress(StoreError):
        return store.read(digest)
    try:
        return repository.reader.manifest(digest)[1]
    except NotFoundError:
        return None


def _key(repository: str) -> str:
    return digest_of_json(["repository", repository])


def _clear(store: Store, repository: str) -> None:
    with suppress(ImagegenError):  # of a store that cannot be written: then there was no journal either
        _MOVES.forget(store, _key(repository))


# An image on its way to a repository: the blobs that it lacks, then the manifest under its digest and no tag.


def push(image: Image, repository: RemoteRepository, store: Store, progress: Progress) -> PushTotals:
    """Push the image to the repository. Raises PublishError, and StoreError for a blob that is in no known place.

    The first error cancels the other uploads and closes the client.
    """
    every = image.blobs
    present = repository.writer.present(every)
    lacking = [blob for blob in every if blob.digest not in present]
    if gone := [blob for blob in lacking if not store.has(blob.digest, blob.size) and not repository.writer.link(blob)]:
        what = f"{counted(len(gone), 'layer')} can be taken neither from {repository.name} nor from the store"
        fix = "run the same command again: it makes them anew"
        raise StoreError(what, code="store-blobs-missing", why=", ".join(blob.digest for blob in gone), fix=fix)
    there = BlobTotals(len(present), sum(blob.size for blob in every if blob.digest in present))
    moved = PushTotals(there, BlobTotals(), BlobTotals())
    if lacking:
        with progress.meter(f"push to {repository.name}", sum(blob.size for blob in lacking)) as meter:
            went = repository.writer.upload_all(lacking, store, meter)
        there = BlobTotals(there.blobs + went.there.blobs, there.size + went.there.size)
        moved = PushTotals(there, went.mounted, went.sent)
    repository.writer.put(image.manifest, MANIFEST_TYPE)
    return moved


def format_summary(moved: PushTotals) -> str:
    """Return a summary for human readers: "12.0 MB sent, 3.10 GB already there"."""
    mounted = f", {human(moved.mounted.size)} mounted from a sibling repository" if moved.mounted.blobs else ""
    return f"{human(moved.sent.size)} sent{mounted}, {human(moved.there.size)} already there"


# Find layers that a trusted attestation describes and the target registry already stores.
#
# They are neither built nor pushed. Trusted are this store, about layers that it once built, and the signers that the
# project names. An untrusted description could name another layer's digest under the hash of an honest wheel.

_MAX_SCAN = 64 << 20  # bytes of a wheel scan, whose size its name does not tell


class AttachmentReader:
    """The verified attachments of images; read once for each image, since later additions are the run's own."""

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

    Layers that only the other repositories store are mounted from there. The images that `tags`, and the tag most
    similar to them, name may share layers with this one; their attestations are read. For layers that are used, the
    store learns the attested scans of the lock's wheels.
    """
    missing = frozenset(each.plan.key for each in resolve_layers(lock, store) if each.origin is LayerOrigin.BUILD)
    if not missing:
        return RemoteLayers()
    layers: dict[str, Layer] = dict(previously_built_layers(lock, store))
    gzip: dict[str, Layer] = {}
    scans: dict[str, tuple[RemoteRepository, str]] = {}
    required: Mapping[str, Layer] = layers if compression == "zstd" else gzip
    if not required.keys() >= missing:
        for repository, digest in _tagged(repositories, tags):
            with suppress(FetchError):  # of what cannot be read, the layers are built here
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
        what = f"{repositories[0].name} has {len(stored)} of {counted(len(missing), 'layer')} missing in this store"
        progress.say(what)
        import_remote_scans(lock, scans, store, progress)
    return RemoteLayers(
        repositories[0].reader,
        {key: layers[key] for key in stored},
        {key: gzip[key] for key in stored & gzip.keys()} if compression == "gzip" else {},
    )


def _same_contents(other: Mapping[str, Layer], layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """Return those of the `other` layers that unpack to the same bytes as `layers`; another builder's may differ."""
    return {key: layer for key, layer in other.items() if key in layers and layers[key].diff_id == layer.diff_id}


def _tagged(repositories: Sequence[RemoteRepository], tags: Tags) -> Iterator[tuple[RemoteRepository, str]]:
    """Yield the images that the tags name in each repository, each once; a repository that cannot be read has none.

    In the first repository the tag most similar to the immutable one counts too: it may be newer than the mutable tags.
    """
    required = tuple(dict.fromkeys((tags.immutable, *tags.mutable, *CHANNELS)))
    for repository in repositories:
        found: dict[str, None] = {}
        with suppress(FetchError, PublishError):
            near = most_similar(tags.immutable, repository.reader.tags()) if repository is repositories[0] else None
            for tag in (*required, *filter(None, [near])):
                if digest := repository.resolve_tag(tag):
                    found[digest] = None
        images: dict[str, None] = {}
        for digest in found:
            with suppress(FetchError):
                images |= dict.fromkeys(repository.images(digest))
        yield from ((repository, image) for image in images)


def _attested(documents: Sequence[Attached]) -> Iterator[LayersDocument]:
    """Yield the descriptions of layers that trusted signers attest."""
    for document in documents:
        if document.document.kind is LAYERS and document.signer is not None:
            with suppress(TrustError):  # of a newer imagegen: its layers are built here
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
        progress.say(f"note: the wheels are scanned here: {error}")


def stored_layers(repository: RemoteRepository, layers: Mapping[str, Layer]) -> frozenset[str]:
    """Return the keys of the layers that the repository has, or mounts from another one. Raises PublishError."""
    present = repository.writer.present(layers.values())
    return frozenset(key for key, layer in layers.items() if layer.digest in present or repository.writer.link(layer))
