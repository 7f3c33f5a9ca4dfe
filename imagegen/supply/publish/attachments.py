"""The documents that are attached to a published image: which there are, and which of them an image lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imagegen.core.store import digest_of
from imagegen.image import layers
from imagegen.image.layers import Image
from imagegen.image.layers.image import description
from imagegen.plan.lock import dumps
from imagegen.plan.lock.model import Lock
from imagegen.supply.trust import provenance, sbom
from imagegen.supply.trust.documents import (
    AUDIT,
    LAYERS,
    LOCK,
    NUMERICS,
    PROVENANCE,
    SBOM,
    Attached,
    Document,
    SourceCommit,
)
from imagegen.supply.trust.provenance import Builder

# Attached once per image: equal content from another machine adds nothing.
_ONCE = (LOCK, LAYERS, SBOM, PROVENANCE)


def documents(
    lock: Lock,
    image: Image,
    canonical: Image,
    scans: Mapping[str, bytes],
    *,
    known: sbom.KnownLicences,
    audit: Mapping[str, Any] | None,
    numerics: bytes | None,
    source: SourceCommit | None,
    builder: Builder,
) -> tuple[Document, ...]:
    """Return all documents except the smoke report. `canonical` is the image with zstd layers, `audit` its audit.

    `numerics` is the document of smoke.numerics. `scans` are those of the lock's wheels and base, by their keys.
    """
    recorded = replace(lock, record=layers.record_of(canonical))
    text = dumps(recorded).encode()
    named = {key: digest_of(data) for key, data in scans.items()}
    gzip = image if image.digest != canonical.digest else None
    found = {
        LOCK: text,
        LAYERS: description(recorded, canonical, named, gzip),
        SBOM: sbom.sbom(lock, image.digest, known),
        PROVENANCE: provenance.provenance(lock, text, source, builder),
    }
    if audit is not None:
        found[AUDIT] = json.dumps(audit, sort_keys=True).encode()
    if numerics is not None:
        found[NUMERICS] = numerics
    return tuple(Document(kind, content) for kind, content in found.items())


def missing(documents: Sequence[Document], attached: Sequence[Attached], *, signs: bool) -> list[Document]:
    """Return the documents that an image with the attachments `attached` lacks.

    With a signer (`signs`), a document without a trusted attestation is attached again.
    """
    trusted = [each.document for each in attached if each.signer is not None or not signs]
    kinds = {document.kind for document in trusted}
    return [
        document
        for document in documents
        if document not in trusted and (document.kind not in _ONCE or document.kind not in kinds)
    ]


def source_annotations(source: SourceCommit | None) -> dict[str, str]:
    """Return the annotations of the attached lock: its repository and commit.

    Names: OCI image-spec v1.1, annotations.md.
    """
    if source is None or source.dirty:  # a commit does not describe a dirty tree
        return {}
    named = {"org.opencontainers.image.source": source.url, "org.opencontainers.image.revision": source.commit}
    return {name: value for name, value in named.items() if value}
