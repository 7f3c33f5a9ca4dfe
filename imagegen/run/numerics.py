"""Fingerprints of an image's numerical results: read from a report of the numerics checks, and kept by image digest.

The store has them, and a document that is attached to a published image:
{"image": digest, "results": {device: details of a check}}.

A fingerprint has, for each operation, implementation and dtype, the sha256 of the result's bytes and some of its
values. It belongs to one device: another GPU, or a CPU with other vector extensions, computes other bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers.plan import digest_of_json
from imagegen.run.smoke.report import SmokeReport

CHECKS = ("numerics", "numerics-cuda")  # of smoke.table
FORMAT = 1  # of the checks' details (smoke.checks.numerics)

_DETAILS = Cache("numerics", dict[str, dict[str, Any]])

Key = tuple[str, str, str]  # operation, implementation, dtype


@dataclass(frozen=True)
class NumericResult:
    """One result. `samples` are values at fixed positions; None stands for one that is not finite."""

    sha256: str
    samples: tuple[float | None, ...]
    repeatable: bool  # a second run gave the same bytes


@dataclass(frozen=True)
class Fingerprint:
    """All results of one image on one device. `driver` is the GPU's, `versions` has the libraries that compute."""

    device: str
    driver: str | None
    versions: Mapping[str, str]
    results: Mapping[Key, NumericResult]


def read(details: Any) -> Fingerprint | None:
    """Read the details of a numerics check, which a container wrote; return None if they have another form."""
    try:
        if details["format"] != FORMAT:
            return None
        device = details["device"]
        results = {
            (str(row["operation"]), str(row["implementation"]), str(row["dtype"])): NumericResult(
                str(row["sha256"]), tuple(map(_sample, row["samples"])), row.get("repeatable", True) is True
            )
            for row in details["operations"]
        }
        driver = None if device["driver"] is None else str(device["driver"])
        versions = {str(name): str(version) for name, version in details["versions"].items()}
        return Fingerprint(str(device["name"]), driver, versions, results)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _sample(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("JSON has no such number")
    return number


def remember(store: Store, image: str, report: SmokeReport) -> None:
    """Save the details of the report's numerics checks for the image with this digest, one for each device."""
    details = {}
    for result in report.results:
        if result.check in CHECKS and (fingerprint := read(result.details)):
            details[fingerprint.device] = dict(result.details)
    with store.lock("numerics"):
        _DETAILS.put(store, fingerprint_key(image), {**_details(store, image), **details})


def recall(store: Store, image: str) -> tuple[Fingerprint, ...]:
    """Return the fingerprints that were kept for the image with this digest."""
    return tuple(filter(None, map(read, _details(store, image).values())))


def document(store: Store, image: str) -> bytes | None:
    """Return the document to attach to the image with this digest, or None if the store has no results of it."""
    details = _details(store, image)
    return json.dumps({"image": image, "results": details}, sort_keys=True).encode() if details else None


def read_attached(content: Any, image: str) -> tuple[Fingerprint, ...]:
    """Return the fingerprints of an attached document's JSON. Raises ValueError for another image or form."""
    try:
        of, details = content["image"], list(content["results"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it does not have the form of numerical results: {type(error).__name__}") from error
    if of != image:
        raise ValueError(f"it is of {of}, and this image is {image}")
    fingerprints = [read(detail) for detail in details]
    if not fingerprints or None in fingerprints:
        raise ValueError("it does not have the form of numerical results")
    return tuple(fingerprint for fingerprint in fingerprints if fingerprint)


def _details(store: Store, image: str) -> dict[str, Any]:
    return _DETAILS.get(store, fingerprint_key(image)) or {}


def fingerprint_key(image: str) -> str:
    """Return the key under which a store keeps the fingerprints of an image."""
    return digest_of_json([image, FORMAT])
