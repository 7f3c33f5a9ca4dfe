"""In-toto statements: signed claims about an image, by its digest. Pure.

Sources: in-toto attestation framework, Statement v1 (and v0.1, which `cosign attest` writes); what cosign 3.1.1 signs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from imagegen.core.errors import TrustError
from imagegen.core.store.layout import is_digest
from imagegen.supply.trust.strict import UnreadableError, canonical, parse

TYPE = "https://in-toto.io/Statement/v1"
_READ = (TYPE, "https://in-toto.io/Statement/v0.1")
_MAX_SUBJECTS = 100


@dataclass(frozen=True)
class Statement:
    """`subjects` are digests ("sha256:..."); `predicate` is canonical JSON, fit for comparison."""

    subjects: tuple[str, ...]
    predicate_type: str
    predicate: bytes


def write(subject: str, predicate_type: str, predicate: bytes = b"{}") -> bytes:
    """The statement that `predicate`, a JSON object, holds for the image `subject`.

    It has no name of a repository and no time: of the same image, the same bytes wherever it lies. The document stands
    in it as it is, byte by byte. Raises TrustError when it is no document that every reader reads alike.
    """
    try:
        parse(predicate)
    except UnreadableError as error:
        raise TrustError(
            f"the document for {predicate_type} cannot be signed", code="trust-statement-unsignable", why=str(error)
        ) from error
    algorithm, _, hexadecimal = subject.partition(":")
    head = {
        "_type": TYPE,
        "subject": [{"digest": {algorithm: hexadecimal}}],
        "predicateType": predicate_type,
    }
    opened = json.dumps(head, separators=(",", ":")).encode().removesuffix(b"}")
    return opened + b',"predicate":' + predicate.strip() + b"}"


def read(data: bytes) -> Statement:
    """Parse a statement. Raises TrustError for a malformed one or an unknown type."""
    try:
        document = parse(data)
        _require(document.get("_type") in _READ, f"its _type is {_short(document.get('_type'))}")
        kind = document.get("predicateType")
        _require(isinstance(kind, str) and kind != "", f"its predicateType is {_short(kind)}")
        predicate = document.get("predicate") or {}
        _require(isinstance(predicate, dict), "its predicate is no JSON object")
        return Statement(_subjects(document.get("subject")), str(kind), canonical(predicate))
    except UnreadableError as error:
        raise TrustError(
            "the signed statement cannot be read", code="trust-statement-malformed", why=str(error)
        ) from error


def same(document: bytes, predicate: bytes) -> bool:
    """Return whether a document and a statement's predicate have the same content, however each is spelled."""
    try:
        return canonical(parse(document)) == predicate
    except UnreadableError:
        return False


def _subjects(value: Any) -> tuple[str, ...]:
    _require(
        isinstance(value, list) and 0 < len(value) <= _MAX_SUBJECTS,
        f"its subject is no list of 1 to {_MAX_SUBJECTS} entries",
    )
    found = []
    for each in value:
        digests = each.get("digest") if isinstance(each, dict) else None
        digest = f"sha256:{digests.get('sha256')}" if isinstance(digests, dict) else ""
        _require(is_digest(digest), "a subject of it has no sha256 digest")
        found.append(digest)
    return tuple(found)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise UnreadableError(why)


def _short(value: Any) -> str:
    return repr(value)[:100]
