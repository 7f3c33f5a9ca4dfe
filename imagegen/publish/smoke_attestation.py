"""Write a passed smoke report as a test attestation of an image, and read it.

Source: in-toto attestation framework, predicate test-result v0.1; further fields are under `imagegen`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from imagegen.core.data import parse_json
from imagegen.run.smoke.passed import PassedSmokeReport, SmokeRequirement
from imagegen.trust.documents import SMOKE, Attached, Document


def smoke_document(passed: PassedSmokeReport) -> Document:
    """Return the document to attach to the image."""
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
