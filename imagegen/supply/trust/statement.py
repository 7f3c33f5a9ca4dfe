"""Write, parse and compare in-toto statements and their Sigstore bundles, as strict JSON.

Parsers of other languages read signed content too. Bytes that two of them could read differently are rejected (RFC
8259, section 4, allows repeated names; RFC 7493 forbids them).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagegen.core.data import unique_keys
from imagegen.core.errors import TrustError
from imagegen.core.oci import is_digest
from imagegen.supply.trust.documents import BUNDLE

MAX_SIZE = 32 << 20  # bytes
_EXACT = 1 << 53  # whole numbers below it are equal as integers and as doubles, as Go writes them


class UnreadableError(ValueError):
    """The bytes are not strict JSON; the message has the reason."""


def parse(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises UnreadableError."""
    if len(data) > MAX_SIZE:
        raise UnreadableError(f"it has {len(data)} bytes, and the limit is {MAX_SIZE}")
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique_keys, parse_float=_number, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except UnreadableError:
        raise
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        raise UnreadableError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableError("it is not a JSON object")
    return value


def canonical(value: dict[str, Any]) -> bytes:
    """Return canonical JSON, with sorted names and without white space. Raises UnreadableError."""
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
    raise UnreadableError(f"{text} is not a number")


# In-toto statements are signed claims about an image, by its digest. Pure.
#
# Sources: in-toto attestation framework, Statement v1 (and v0.1, which `cosign attest` writes); statements of cosign
# 3.1.1.

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


# A registry stores a signed statement as a DSSE envelope in a Sigstore bundle, version 0.3. Pure.
#
# Sources: sigstore/protobuf-specs, sigstore_bundle.proto (0.3.x with exactly one signature in the envelope, one
# certificate or one key's hint) in its JSON form; secure-systems-lab/dsse, protocol.md (pre-authentication encoding);
# and bundles of cosign 3.1.1, whose hint is the base64 of the SHA-256 of the key's SubjectPublicKeyInfo.
#
# Unknown names are rejected. A name that differs only in case is another name for this reader, and the same name for
# Go's reader, which would then read other content than this reader verified.

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MATERIAL = frozenset({"publicKey", "certificate", "tlogEntries", "timestampVerificationData"})


@dataclass(frozen=True)
class Bundle:
    """A parsed bundle, not verified. `material` is its verificationMaterial.

    `hint` names the claimed signing key; None if the bundle has a certificate.
    """

    payload: bytes
    signature: bytes
    hint: str | None
    material: Mapping[str, Any]

    @property
    def signed(self) -> bytes:
        """The bytes that are signed."""
        return pae(PAYLOAD_TYPE, self.payload)


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign for a payload, with its type and both lengths, so that types cannot be confused."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def write_bundle(payload: bytes, signature: bytes, material: Mapping[str, Any]) -> bytes:
    """Return the bundle of a statement; the signature is over `pae(PAYLOAD_TYPE, payload)`, `material` verifies it."""
    envelope = {
        "payload": encode_base64(payload),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": encode_base64(signature)}],
    }
    document = {"mediaType": BUNDLE, "verificationMaterial": dict(material), "dsseEnvelope": envelope}
    return json.dumps(document, separators=(",", ":")).encode()


def read_bundle(data: bytes) -> Bundle:
    """Parse a bundle. Raises TrustError if it is not strict JSON of this version."""
    try:
        return _read_bundle(parse(data))
    except UnreadableError as error:
        raise TrustError(
            "the signature's bundle cannot be read", code="trust-bundle-malformed", why=str(error)
        ) from error


def _read_bundle(document: dict[str, Any]) -> Bundle:
    if document.get("mediaType") != BUNDLE:
        raise UnreadableError(f"its mediaType is {repr(document.get('mediaType'))[:100]}, not {BUNDLE}")
    if "messageSignature" in document:
        raise UnreadableError("it signs bytes, not a statement")
    _table(document, "the bundle", {"mediaType", "verificationMaterial", "dsseEnvelope"})
    material = _table(document["verificationMaterial"], "verificationMaterial", set(), _MATERIAL)
    if ("publicKey" in material) == ("certificate" in material):
        raise UnreadableError("its verificationMaterial must have either a key or a certificate")
    hint = None
    if "publicKey" in material:
        hint = _text(_table(material["publicKey"], "publicKey", set(), {"hint"}).get("hint", ""), "hint")
    envelope = _table(document["dsseEnvelope"], "dsseEnvelope", {"payload", "payloadType", "signatures"})
    kind = _text(envelope["payloadType"], "payloadType")
    if kind != PAYLOAD_TYPE:
        raise UnreadableError(f"its payloadType is {kind[:100]!r}, not {PAYLOAD_TYPE}")
    signatures = envelope["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise UnreadableError("it must have exactly one signature")
    signature = _table(signatures[0], "the signature", {"sig"}, {"keyid"})
    return Bundle(decode_base64(envelope["payload"], "payload"), decode_base64(signature["sig"], "sig"), hint, material)


def encode_base64(data: bytes) -> str:
    """Return padded base64 in the standard alphabet, as in bundles."""
    return base64.b64encode(data).decode()


def decode_base64(value: Any, field: str) -> bytes:
    """Decode base64 in its canonical spelling. Raises UnreadableError."""
    text = _text(value, field)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableError(f"its {field} is not base64") from error
    if encode_base64(data) != text:
        raise UnreadableError(f"its {field} is not canonical base64")
    return data


def _table(
    value: Any, field: str, required: set[str], optional: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableError(f"{field} is not a JSON object")
    for name in sorted(required - value.keys()):
        raise UnreadableError(f"{field} has no {name}")
    for name in sorted(value.keys() - required - optional):
        raise UnreadableError(f"{field} has an unknown field {name[:100]!r}")
    return value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise UnreadableError(f"its {field} is not a string")
    return value
