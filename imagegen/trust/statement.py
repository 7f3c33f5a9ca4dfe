"""In-toto statements, which are signed claims about an image, by its digest. Pure.

Sources: in-toto attestation framework, Statement v1 (and v0.1, which `cosign attest` writes); statements of cosign
3.1.1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imagegen.core.errors import TrustError
from imagegen.oci.documents import is_digest
from imagegen.trust.strict_json import UnreadableError, canonical, parse

TYPE = "https://in-toto.io/Statement/v1"
_READ = (TYPE, "https://in-toto.io/Statement/v0.1")
MAX_SUBJECTS = 100


@dataclass(frozen=True)
class InTotoStatement:
    """A statement about `subjects`, digests ("sha256:..."); `predicate` is canonical JSON, for comparison."""

    subjects: tuple[str, ...]
    predicate_type: str
    predicate: bytes


def write(subject: str, predicate_type: str, predicate: bytes = b"{}", others: Sequence[str] = ()) -> bytes:
    """Return the statement with `predicate`, a JSON object, about the images `subject` and `others`.

    It has no name of a repository and no time, so that equal images in all repositories have equal statements. The
    bytes of the predicate are not changed. Raises TrustError if it is not strict JSON.
    """
    try:
        parse(predicate)
    except UnreadableError as error:
        raise TrustError(
            f"the document for {predicate_type} cannot be signed", code="trust-statement-unsignable", why=str(error)
        ) from error
    subjects = [other.partition(":") for other in (subject, *others)]
    head = {
        "_type": TYPE,
        "subject": [{"digest": {algorithm: hexadecimal}} for algorithm, _, hexadecimal in subjects],
        "predicateType": predicate_type,
    }
    opened = json.dumps(head, separators=(",", ":")).encode().removesuffix(b"}")
    return opened + b',"predicate":' + predicate.strip() + b"}"


def read(data: bytes) -> InTotoStatement:
    """Parse a statement. Raises TrustError for a malformed one or an unknown type."""
    try:
        document = parse(data)
        _require(document.get("_type") in _READ, f"its _type is {_short(document.get('_type'))}")
        kind = document.get("predicateType")
        _require(isinstance(kind, str) and kind != "", f"its predicateType is {_short(kind)}")
        predicate = document.get("predicate") or {}
        _require(isinstance(predicate, dict), "its predicate is not a JSON object")
        return InTotoStatement(_subjects(document.get("subject")), str(kind), canonical(predicate))
    except UnreadableError as error:
        raise TrustError(
            "the signed statement cannot be read", code="trust-statement-malformed", why=str(error)
        ) from error


def same(document: bytes, predicate: bytes) -> bool:
    """Return whether a document and a statement's predicate have the same content, in any spelling."""
    try:
        return canonical(parse(document)) == predicate
    except UnreadableError:
        return False


def _subjects(value: Any) -> tuple[str, ...]:
    _require(
        isinstance(value, list) and 0 < len(value) <= MAX_SUBJECTS,
        f"its subject is not a list of 1 to {MAX_SUBJECTS} entries",
    )
    subjects = []
    for entry in value:
        digests = entry.get("digest") if isinstance(entry, dict) else None
        digest = f"sha256:{digests.get('sha256')}" if isinstance(digests, dict) else ""
        _require(is_digest(digest), "one of its subjects has no sha256 digest")
        subjects.append(digest)
    return tuple(subjects)


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise UnreadableError(why)


def _short(value: Any) -> str:
    return repr(value)[:100]
