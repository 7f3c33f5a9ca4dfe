"""The documents that are attached to an image, and test attestations: whether an earlier smoke report still holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imagegen.core.oci.types import digest_of
from imagegen.core.store import Store
from imagegen.image import layers
from imagegen.image.layers import Image
from imagegen.image.layers.image import description
from imagegen.image.layers.plan import digest_of_json
from imagegen.incontainer.smoke.table import applicable
from imagegen.plan.lock import dumps
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Declarations
from imagegen.run import smoke
from imagegen.run.smoke.run import files, parts, spec
from imagegen.supply.trust import provenance, sbom
from imagegen.supply.trust.documents import (
    AUDIT,
    LAYERS,
    LOCK,
    NUMERICS,
    PROVENANCE,
    SBOM,
    SMOKE,
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
    plain: Image,
    facts: Mapping[str, bytes],
    *,
    known: sbom.KnownLicences,
    audit: Mapping[str, Any] | None,
    numerics: bytes | None,
    source: SourceCommit | None,
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
        LAYERS: description(recorded, plain, named, gzip),
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


def origin_of(source: SourceCommit | None) -> dict[str, str]:
    """Return the annotations of the attached lock: its repository and commit.

    Names: OCI image-spec v1.1, annotations.md.
    """
    if source is None or source.dirty:  # then the commit does not hold it
        return {}
    named = {"org.opencontainers.image.source": source.url, "org.opencontainers.image.revision": source.commit}
    return {name: value for name, value in named.items() if value}


# Smoke reports as test attestations: when an earlier report still holds, and the document that contains it.
#
# A report holds for an image (by digest), for the smoke programs with all their inputs, and for whether the GPU's
# checks really ran. While these are the same, nothing has to run again. Source of the document's form: in-toto
# attestation framework, predicate test-result v0.1; fields that it lacks are under `imagegen`.

_KIND = "smoke"  # records of the store


@dataclass(frozen=True)
class SmokeRequirement:
    """A required smoke test: of which image, by which programs, and whether on a GPU."""

    image: str
    suite: str
    gpu: bool

    @classmethod
    def of(cls, image: str, lock: Lock, declared: Declarations, *, require_gpu: bool) -> SmokeRequirement:
        """An image none of whose checks needs a GPU is proven without one."""
        return cls(image, suite(lock, declared), require_gpu and bool(_gpu_checks(lock)))


@dataclass(frozen=True)
class SmokeAttestation:
    """A green report."""

    image: str
    suite: str
    gpu: bool  # whether the checks that need a GPU had one
    report: Mapping[str, Any]  # as smoke.SmokeReport.as_dict has it

    def proves(self, required: SmokeRequirement) -> bool:
        return (self.image, self.suite) == (required.image, required.suite) and (self.gpu or not required.gpu)


def suite(lock: Lock, declared: Declarations) -> str:
    """Return the digest of all files that the checks put into a container: the smoke programs and their inputs."""
    return digest_of_json({name: digest_of(data) for name, data in files(spec(lock, declared)).items()})


def of(report: smoke.SmokeReport, required: SmokeRequirement, lock: Lock) -> SmokeAttestation:
    """Return the test attestation of a report that passed."""
    checks = _gpu_checks(lock)
    ran = {result.check for result in report.results if result.status == "pass"}
    return SmokeAttestation(required.image, required.suite, bool(checks) and checks <= ran, report.as_dict())


def remember(store: Store, proof: SmokeAttestation) -> None:
    store.remember(_KIND, _key(proof.image, proof.suite, proof.gpu), {"report": dict(proof.report)})


def recall(store: Store, required: SmokeRequirement) -> SmokeAttestation | None:
    """Return a passed smoke test that this store remembers; one with a GPU before one without."""
    for gpu in (True,) if required.gpu else (True, False):
        if found := store.recall(_KIND, _key(required.image, required.suite, gpu)):
            return SmokeAttestation(required.image, required.suite, gpu, found["report"])
    return None


def document(proof: SmokeAttestation) -> Document:
    """The report as what is attached to the image."""
    checks = proof.report["checks"]
    suite_digest = proof.suite.removeprefix("sha256:")
    content = {
        "result": "PASSED",
        "configuration": [{"name": "imagegen smoke checks", "digest": {"sha256": suite_digest}}],
        "passedTests": [each["check"] for each in checks if each["status"] == "pass"],
        "warnedTests": [],
        "failedTests": [],
        "imagegen": {"image": proof.image, "suite": proof.suite, "gpu": proof.gpu, "report": dict(proof.report)},
    }
    return Document(SMOKE, json.dumps(content, sort_keys=True).encode())


def attested(documents: Iterable[Attached], required: SmokeRequirement) -> tuple[SmokeAttestation, str] | None:
    """Return an attached report that a trusted signer attests and that satisfies `required`, and the signer.

    A document of another form is ignored.
    """
    for each in documents:
        if each.document.kind == SMOKE and each.signer is not None:
            proof = _read(each.document.content)
            if proof and proof.proves(required):
                return proof, each.signer
    return None


def _read(content: bytes) -> SmokeAttestation | None:
    try:
        predicate = json.loads(content)
        own = predicate["imagegen"]
        proof = SmokeAttestation(own["image"], own["suite"], own["gpu"] is True, own["report"])
        passed = predicate["result"] == "PASSED" and own["report"]["passed"] is True
        document(proof)  # which it becomes again where it is taken
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return proof if passed else None


def _gpu_checks(lock: Lock) -> frozenset[str]:
    """Return the checks that must run on a GPU; those that need several are skipped on many hosts."""
    checks = applicable(parts(lock)) if lock.gpu else ()
    return frozenset(check.name for check in checks if check.device == "cuda" and check.gpus == 1)


def _key(image: str, suite_digest: str, gpu: bool) -> str:
    return digest_of_json([image, suite_digest, gpu])
