"""A repository that an image is published to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagegen.core.store import Store
from imagegen.oci.documents import read_images
from imagegen.oci.registry import PushTarget, Reference, Repository


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
