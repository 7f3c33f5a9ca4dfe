"""Writing artifacts: manifests that are no image's.

Source: OCI image-spec v1.1, manifest.md (artifactType, subject, the empty descriptor), annotations.md (title).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from imagegen.core.registry.image import Descriptor
from imagegen.core.store import digest_of
from imagegen.core.store.layout import MANIFEST_TYPE

NOTHING = b"{}"  # the blob of EMPTY, which stands where an image has its config
EMPTY = Descriptor("application/vnd.oci.empty.v1+json", digest_of(NOTHING), len(NOTHING))
_TITLE = "org.opencontainers.image.title"


def artifact(
    kind: str,
    parts: Iterable[tuple[str | None, Descriptor]],
    annotations: Mapping[str, str],
    subject: Descriptor | None = None,
) -> bytes:
    """The manifest of an artifact of this type: its blobs with their titles, where they have some, and its subject."""
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": kind,
        "config": described(EMPTY),
        "layers": [described(blob) | ({"annotations": {_TITLE: title}} if title else {}) for title, blob in parts],
        "annotations": dict(annotations),
    }
    if subject:
        document["subject"] = described(subject)
    return json.dumps(document, sort_keys=True).encode()


def described(blob: Descriptor) -> dict[str, Any]:
    """The descriptor as documents write it."""
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}
