"""In-toto statements: write, parse, compare; and the strict JSON that they need.

Signed content goes through parsers of other languages too. Bytes that two of them could read differently are rejected
(RFC 8259, section 4, leaves repeated names open; RFC 7493 forbids them).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from imagegen.core.data import unique_keys
from imagegen.core.errors import TrustError
from imagegen.core.oci.types import is_digest

LONGEST = 32 << 20  # bytes
_EXACT = 1 << 53  # whole numbers below it are the same as integers and as doubles, which is how Go writes them


class UnreadableError(ValueError):
    """The bytes are not such JSON; the message has the reason."""


def parse(data: bytes) -> dict[str, Any]:
    """The object that is all of `data`. Raises UnreadableError."""
    if len(data) > LONGEST:
        raise UnreadableError(f"it has {len(data)} bytes, and {LONGEST} are the most that are read")
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique_keys, parse_float=_number, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except UnreadableError:
        raise
    except ValueError as error:  # no JSON, or an integer of thousands of digits
        raise UnreadableError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableError("it is no JSON object")
    return value


def canonical(value: dict[str, Any]) -> bytes:
    """The same bytes for whatever means the same: names sorted, nothing between. Raises UnreadableError."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise UnreadableError(f"the number {text[:40]} is too large")
    return int(number) if number.is_integer() and abs(number) < _EXACT else number


def _constant(text: str) -> Any:
    raise UnreadableError(f"{text} is no number")


# In-toto statements: signed claims about an image, by its digest. Pure.
#
# Sources: in-toto attestation framework, Statement v1 (and v0.1, which `cosign attest` writes); what cosign 3.1.1
# signs.

TYPE = "https://in-toto.io/Statement/v1"
_READ = (TYPE, "https://in-toto.io/Statement/v0.1")
_MAX_SUBJECTS = 100


@dataclass(frozen=True)
class InTotoStatement:
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


def read(data: bytes) -> InTotoStatement:
    """Parse a statement. Raises TrustError for a malformed one or an unknown type."""
    try:
        document = parse(data)
        _require(document.get("_type") in _READ, f"its _type is {_short(document.get('_type'))}")
        kind = document.get("predicateType")
        _require(isinstance(kind, str) and kind != "", f"its predicateType is {_short(kind)}")
        predicate = document.get("predicate") or {}
        _require(isinstance(predicate, dict), "its predicate is no JSON object")
        return InTotoStatement(_subjects(document.get("subject")), str(kind), canonical(predicate))
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
