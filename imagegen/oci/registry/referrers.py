"""List and verify the referrers of an image, which are attached to it.

Source: OCI distribution-spec v1.1 (the pull half).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagegen.core.errors import FetchError
from imagegen.oci.documents import (
    INDEX_TYPE,
    MANIFEST_TYPE,
    MAX_CONFIG,
    MAX_LIST,
    Artifact,
    Descriptor,
    digest_of,
    read_artifact,
    read_entry,
    read_index,
    write_artifact,
)

_MAX_CONTENT = 64 << 20  # bytes of an attachment of an image


@dataclass(frozen=True)
class Referrer:
    """An entry of a list of referrers, not verified before `Repository.content`.

    `digest` and `size` (bytes) are of its manifest, `subject` is the digest of the manifest that it refers to.
    """

    digest: str
    size: int
    artifact_type: str
    annotations: Mapping[str, str]
    subject: str


@dataclass(frozen=True)
class Content:
    """The blob of a referrer that has one, verified by digest."""

    artifact_type: str
    annotations: Mapping[str, str]
    media_type: str
    data: bytes


class ReferrerReader(ABC):
    """Reads the referrers of images of a registry's repository or of a layout in a directory; `name` is for errors."""

    name: str

    @abstractmethod
    def manifest(self, requested: str, size: int | None = None) -> tuple[str, bytes, str]:
        """Return digest, bytes and media type of the manifest under a tag or digest, verified. Raises FetchError."""

    @abstractmethod
    def document(self, blob: Descriptor, limit: int = MAX_CONFIG) -> bytes:
        """Return a small blob, whole and verified, of at most `limit` bytes. Raises FetchError."""

    def artifact(self, referrer: Referrer) -> Artifact:
        """Return the artifact's manifest, verified by digest and by its subject. Raises FetchError."""
        where = f"{self.name}@{referrer.digest}"
        _, data, kind = self.manifest(referrer.digest, referrer.size)
        artifact = read_artifact(data, kind, where)
        if artifact.subject != referrer.subject:
            raise FetchError(
                f"{where} is listed for {referrer.subject}, and does not refer to it",
                code="fetch-referrer-mismatch",
                why=f"it refers to {artifact.subject or 'nothing'}",
                fix="do not trust it: any account with write access can have changed the list",
            )
        return artifact

    def content(self, referrer: Referrer) -> Content:
        """Return the one blob of an artifact, verified as `artifact` is. Raises FetchError."""
        artifact = self.artifact(referrer)
        if len(artifact.parts) != 1:
            raise FetchError(
                f"{self.name}@{referrer.digest} is not a single document",
                code="fetch-artifact-invalid",
                why=f"it has {len(artifact.parts)} parts",
            )
        ((_, blob),) = artifact.parts
        return Content(artifact.kind, artifact.annotations, blob.media_type, self.document(blob, _MAX_CONTENT))


def fallback_tag(subject: str) -> str:
    """The tag of the list of referrers where the registry keeps none; `subject` is "sha256:...".

    The specification would cut long algorithms and digests; sha256 digests are never cut.
    """
    return subject.replace(":", "-")


def listed(index: bytes, subject: str, where: str) -> tuple[Referrer, ...]:
    """Return the referrers in a list, in its order, except those that imagegen cannot request. Raises FetchError."""
    referrers: dict[str, Referrer] = {}
    for entry in read_index(index, where):
        read = read_entry(entry)
        if read is not None:
            descriptor, artifact_type, annotations = read
            referrer = Referrer(descriptor.digest, descriptor.size, artifact_type, annotations, subject)
            referrers.setdefault(descriptor.digest, referrer)
    return tuple(referrers.values())


def referring(
    subject: Descriptor, artifact_type: str, blobs: Mapping[str, Descriptor], annotations: Mapping[str, str]
) -> tuple[bytes, dict[str, Any]]:
    """The manifest of an artifact that refers to `subject`, and its entry in a list of referrers.

    `blobs` are by their titles; "" is none.
    """
    data = write_artifact(artifact_type, blobs.items(), annotations, subject)
    entry = Descriptor(MANIFEST_TYPE, digest_of(data), len(data)).as_dict()
    return data, entry | {"artifactType": artifact_type, "annotations": dict(annotations)}


def extended(index: bytes | None, entries: Mapping[str, dict[str, Any]], where: str) -> bytes | None:
    """The list with `entries` (by digest) that it lacks; None if it lacks none. `index` is None if there is no list.

    Entries of others stay unchanged. Raises FetchError for a list that is none, or is full.
    """
    present = read_index(index, where) if index is not None else []
    digests = {entry.get("digest") for entry in present if isinstance(entry, dict)}
    added = [entry for digest, entry in entries.items() if digest not in digests]
    if not added:
        return None
    if len(present) + len(added) > MAX_LIST:
        raise FetchError(
            f"{where} has reached the limit of referrers",
            code="fetch-too-many-referrers",
            why=f"it lists {len(present)} artifacts already",
        )
    document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*present, *added]}
    return json.dumps(document, sort_keys=True).encode()
