"""The documents to attach to an image, and which of them are new."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imagegen.core.store import digest_of
from imagegen.image import layers
from imagegen.image.layers import Image, describe
from imagegen.plan.lock import dumps
from imagegen.plan.lock.model import Lock
from imagegen.supply.trust import provenance, sbom
from imagegen.supply.trust.documents import AUDIT, LAYERS, LOCK, NUMERICS, PROVENANCE, SBOM, Attached, Document
from imagegen.supply.trust.origin import Source
from imagegen.supply.trust.provenance import Builder

# Said once of an image: what another machine would say later is as true, and no news.
_ONCE = (LOCK, LAYERS, SBOM, PROVENANCE)


def documents(
    lock: Lock,
    image: Image,
    plain: Image,
    facts: Mapping[str, bytes],
    *,
    known: sbom.Known,
    audit: Mapping[str, Any] | None,
    numerics: bytes | None,
    source: Source | None,
    builder: Builder,
) -> tuple[Document, ...]:
    """Return all documents but the smoke report. `plain` is the image with its layers as imagegen makes them, `audit`
    its audit.

    `numerics` is the document of smoke.numerics. `facts` are scans of the lock's wheels and base, by their keys.
    """
    recorded = replace(lock, record=layers.record_of(plain))
    text = dumps(recorded).encode()
    named = {key: digest_of(data) for key, data in facts.items()}
    gzip = image if image.digest != plain.digest else None
    found = {
        LOCK: text,
        LAYERS: describe.described(recorded, plain, named, gzip),
        SBOM: sbom.sbom(lock, image.digest, known),
        PROVENANCE: provenance.provenance(lock, text, source, builder),
    }
    if audit is not None:
        found[AUDIT] = json.dumps(audit, sort_keys=True).encode()
    if numerics is not None:
        found[NUMERICS] = numerics
    return tuple(Document(kind, content) for kind, content in found.items())


def news(documents: Sequence[Document], said: Sequence[Attached], *, signs: bool) -> list[Document]:
    """Return the documents that must be attached where `said` is attached already.

    With a signer, documents without a trusted attestation are attached again; without one, only missing ones are.
    """
    counts = [each for each in said if each.signer is not None or not signs]
    there = {each.document.kind for each in counts}
    same = [each.document for each in counts]
    return [
        document
        for document in documents
        if document not in same and (document.kind not in _ONCE or document.kind not in there)
    ]


def origin_of(source: Source | None) -> dict[str, str]:
    """Return the annotations of the attached lock: its repository and commit.

    Names: OCI image-spec v1.1, annotations.md.
    """
    if source is None or source.dirty:  # then the commit does not hold it
        return {}
    named = {"org.opencontainers.image.source": source.url, "org.opencontainers.image.revision": source.commit}
    return {name: value for name, value in named.items() if value}
