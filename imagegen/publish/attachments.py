"""Write the documents that are attached to a published image, and find missing ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from imagegen.core.data import parse_json
from imagegen.image import layers
from imagegen.image.layers import Image
from imagegen.image.layers.layers_document import description
from imagegen.lock import dumps_attached
from imagegen.lock.model import Lock
from imagegen.oci.documents import digest_of
from imagegen.run.smoke.passed import PassedSmokeReport, SmokeRequirement
from imagegen.trust import provenance, sbom
from imagegen.trust.documents import AUDIT, LAYERS, LOCK, NUMERICS, PROVENANCE, SBOM, SMOKE, Attached, Document
from imagegen.trust.licences import KnownLicences
from imagegen.trust.provenance import Builder
from imagegen.trust.source_commit import SourceCommit

# Attached once per image, because documents of another machine have the same meaning.
_ONCE = (LOCK, LAYERS, SBOM, PROVENANCE)


def documents(
    lock: Lock,
    image: Image,
    canonical: Image,
    scans: Mapping[str, bytes],
    *,
    licences: KnownLicences,
    audit: Mapping[str, Any] | None,
    numerics: bytes | None,
    source: SourceCommit | None,
    builder: Builder,
) -> tuple[Document, ...]:
    """Return all documents except the smoke report. `canonical` is the image with zstd layers, `audit` its audit.

    `numerics` is the document of `run.numerics`. `scans` are the scans of the lock's wheels and base, by their keys.
    """
    recorded = replace(lock, record=layers.record_of(canonical))
    text = dumps_attached(recorded).encode()
    scan_digests = {key: digest_of(data) for key, data in scans.items()}
    recompressed = image if image.digest != canonical.digest else None
    contents = {
        LOCK: text,
        LAYERS: description(recorded, canonical, scan_digests, recompressed),
        SBOM: sbom.sbom(lock, image.digest, licences),
        PROVENANCE: provenance.provenance(lock, text, source, builder),
    }
    if audit is not None:
        contents[AUDIT] = json.dumps(audit, sort_keys=True).encode()
    if numerics is not None:
        contents[NUMERICS] = numerics
    return tuple(Document(kind, content) for kind, content in contents.items())


def missing(documents: Sequence[Document], attached: Sequence[Attached], *, signs: bool) -> list[Document]:
    """Return the documents that are missing in the attachments `attached` of an image.

    With a signer (`signs`), a document without a trusted attestation is attached again.
    """
    trusted = [attachment.document for attachment in attached if attachment.signer is not None or not signs]
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
    values = {"org.opencontainers.image.source": source.url, "org.opencontainers.image.revision": source.commit}
    return {name: value for name, value in values.items() if value}


def smoke_document(passed: PassedSmokeReport) -> Document:
    """Return a passed report as a test attestation; imagegen's own fields are under `imagegen`.

    Source: in-toto attestation framework, predicate test-result v0.1.
    """
    checks = passed.report["checks"]
    suite_digest = passed.programs.removeprefix("sha256:")
    content = {
        "result": "PASSED",
        "configuration": [{"name": "imagegen smoke checks", "digest": {"sha256": suite_digest}}],
        "passedTests": [check["check"] for check in checks if check["status"] == "pass"],
        "warnedTests": [],
        "failedTests": [],
        "imagegen": {"image": passed.image, "suite": passed.programs, "gpu": passed.gpu, "report": dict(passed.report)},
    }
    return Document(SMOKE, json.dumps(content, sort_keys=True).encode())


def find_attested(documents: Iterable[Attached], required: SmokeRequirement) -> tuple[PassedSmokeReport, str] | None:
    """Return an attached report that a trusted signer attests and that satisfies `required`, and the signer.

    A document in another format is ignored.
    """
    for document in documents:
        if document.document.kind == SMOKE and document.signer is not None:
            passed = _read(document.document.content)
            if passed and passed.satisfies(required):
                return passed, document.signer
    return None


def _read(content: bytes) -> PassedSmokeReport | None:
    try:
        predicate = parse_json(content)
        details = predicate["imagegen"]
        report = PassedSmokeReport(details["image"], details["suite"], details["gpu"] is True, details["report"])
        passed = predicate["result"] == "PASSED" and details["report"]["passed"] is True
        smoke_document(report)  # fails for a report in another format
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return report if passed else None
