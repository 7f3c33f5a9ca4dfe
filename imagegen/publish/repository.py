"""A repository that an image is published to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagegen.core.errors import StoreError
from imagegen.core.progress import Progress, human
from imagegen.core.store import Store
from imagegen.core.text import counted
from imagegen.image.layers import Image
from imagegen.oci.documents import MANIFEST_TYPE, read_images
from imagegen.oci.registry import PushTarget, Reference, Repository
from imagegen.oci.registry.push import BlobTotals, PushTotals


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


def push(image: Image, repository: RemoteRepository, store: Store, progress: Progress) -> PushTotals:
    """Push the missing blobs of an image, then its manifest by digest, without a tag.

    Raises PublishError, and StoreError for a blob that cannot be found.

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
