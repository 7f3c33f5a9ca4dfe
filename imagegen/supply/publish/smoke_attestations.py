"""Test attestations: passed smoke reports, stored and attached, and whether one still applies.

A report applies to an image (by digest), to the smoke programs with all their inputs, and to a run with or without a
GPU. While these are the same, no check needs to run again. Source of the document's form: in-toto attestation
framework, predicate test-result v0.1; fields that it lacks are under `imagegen`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from imagegen.core.store import Store, digest_of
from imagegen.image.layers.plan import digest_of_json
from imagegen.incontainer.smoke.table import applicable
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Declarations
from imagegen.run.smoke import SmokeReport
from imagegen.run.smoke.run import files, parts, spec
from imagegen.supply.trust.documents import SMOKE, Attached, Document

_KIND = "smoke"  # kind of the store's records


@dataclass(frozen=True)
class SmokeRequirement:
    """A required smoke test: image digest, digest of the programs (`programs_digest`), whether on a GPU."""

    image: str
    programs: str
    gpu: bool

    @classmethod
    def of(cls, image: str, lock: Lock, declared: Declarations, *, require_gpu: bool) -> SmokeRequirement:
        """Return the requirement for a lock's image; `require_gpu` has no effect if no check needs a GPU."""
        return cls(image, programs_digest(lock, declared), require_gpu and bool(_gpu_checks(lock)))


@dataclass(frozen=True)
class SmokeAttestation:
    """A smoke report without a failed check. `programs` is the digest of the smoke programs."""

    image: str
    programs: str
    gpu: bool  # whether the checks that need a GPU had one
    report: Mapping[str, Any]  # as `SmokeReport.as_dict` returns it

    def satisfies(self, required: SmokeRequirement) -> bool:
        return (self.image, self.programs) == (required.image, required.programs) and (self.gpu or not required.gpu)


def programs_digest(lock: Lock, declared: Declarations) -> str:
    """Return the digest of all files that the checks put into a container: the smoke programs and their inputs."""
    return digest_of_json({name: digest_of(data) for name, data in files(spec(lock, declared)).items()})


def attestation_of(report: SmokeReport, required: SmokeRequirement, lock: Lock) -> SmokeAttestation:
    """Return the test attestation of a report that passed."""
    checks = _gpu_checks(lock)
    ran = {result.check for result in report.results if result.status == "pass"}
    return SmokeAttestation(required.image, required.programs, bool(checks) and checks <= ran, report.as_dict())


def save_attestation(store: Store, attestation: SmokeAttestation) -> None:
    store.remember(
        _KIND, _key(attestation.image, attestation.programs, attestation.gpu), {"report": dict(attestation.report)}
    )


def find_saved(store: Store, required: SmokeRequirement) -> SmokeAttestation | None:
    """Return an attestation in the store that satisfies `required`; one with a GPU before one without."""
    for gpu in (True,) if required.gpu else (True, False):
        if found := store.recall(_KIND, _key(required.image, required.programs, gpu)):
            return SmokeAttestation(required.image, required.programs, gpu, found["report"])
    return None


def attestation_document(attestation: SmokeAttestation) -> Document:
    """Return the document to attach to the image."""
    checks = attestation.report["checks"]
    suite_digest = attestation.programs.removeprefix("sha256:")
    content = {
        "result": "PASSED",
        "configuration": [{"name": "imagegen smoke checks", "digest": {"sha256": suite_digest}}],
        "passedTests": [each["check"] for each in checks if each["status"] == "pass"],
        "warnedTests": [],
        "failedTests": [],
        "imagegen": {
            "image": attestation.image,
            "suite": attestation.programs,
            "gpu": attestation.gpu,
            "report": dict(attestation.report),
        },
    }
    return Document(SMOKE, json.dumps(content, sort_keys=True).encode())


def find_attested(documents: Iterable[Attached], required: SmokeRequirement) -> tuple[SmokeAttestation, str] | None:
    """Return an attached report that a trusted signer attests and that satisfies `required`, and the signer.

    A document of another form is ignored.
    """
    for each in documents:
        if each.document.kind == SMOKE and each.signer is not None:
            attestation = _read(each.document.content)
            if attestation and attestation.satisfies(required):
                return attestation, each.signer
    return None


def _read(content: bytes) -> SmokeAttestation | None:
    try:
        predicate = json.loads(content)
        own = predicate["imagegen"]
        attestation = SmokeAttestation(own["image"], own["suite"], own["gpu"] is True, own["report"])
        passed = predicate["result"] == "PASSED" and own["report"]["passed"] is True
        attestation_document(attestation)  # fails for a report of another form
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return attestation if passed else None


def _gpu_checks(lock: Lock) -> frozenset[str]:
    """Return the checks that must run on a GPU; checks for several GPUs are skipped on many hosts."""
    checks = applicable(parts(lock)) if lock.gpu else ()
    return frozenset(check.name for check in checks if check.device == "cuda" and check.gpus == 1)


def _key(image: str, suite_digest: str, gpu: bool) -> str:
    return digest_of_json([image, suite_digest, gpu])
