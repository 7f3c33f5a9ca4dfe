"""In-toto statements and the Sigstore bundles that hold them: write, parse, compare; and strict JSON for both.

Signed content goes through parsers of other languages too. Bytes that two of them could read differently are rejected
(RFC 8259, section 4, leaves repeated names open; RFC 7493 forbids them).
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
    """Return canonical JSON, equal bytes for equal documents: names sorted, no white space. Raises UnreadableError."""
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
MAX_SUBJECTS = 100


@dataclass(frozen=True)
class InTotoStatement:
    """A statement about `subjects`, digests ("sha256:..."); `predicate` is canonical JSON, for comparison."""

    subjects: tuple[str, ...]
    predicate_type: str
    predicate: bytes


def write(subject: str, predicate_type: str, predicate: bytes = b"{}", others: Sequence[str] = ()) -> bytes:
    """The statement that `predicate`, a JSON object, holds for the image `subject`, and for the `others`.

    It has no name of a repository and no time: of the same image, the same bytes wherever it lies. The document stands
    in it as it is, byte by byte. Raises TrustError when it is no document that every reader reads alike.
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
        isinstance(value, list) and 0 < len(value) <= MAX_SUBJECTS,
        f"its subject is no list of 1 to {MAX_SUBJECTS} entries",
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


# A signed statement as it lies in a registry: a DSSE envelope in a Sigstore bundle, version 0.3. Pure.
#
# Sources: sigstore/protobuf-specs, sigstore_bundle.proto (0.3.x: exactly one signature in the envelope, one certificate
# or one key's hint) in its JSON form; secure-systems-lab/dsse, protocol.md (pre-authentication encoding); and what
# cosign 3.1.1 writes, whose hint is the base64 of the SHA-256 of the key's SubjectPublicKeyInfo.
#
# The reader takes nothing that it does not know: a name that differs in case alone is another name here and the same
# name to Go's reader, and what is read must be what was verified.

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MATERIAL = frozenset({"publicKey", "certificate", "tlogEntries", "timestampVerificationData"})


@dataclass(frozen=True)
class Bundle:
    """A parsed bundle, not verified. `material` is its verificationMaterial, which the signature is verified with.

    `hint` names the claimed signing key; None if the key is a certificate's.
    """

    payload: bytes
    signature: bytes
    hint: str | None
    material: Mapping[str, Any]

    @property
    def signed(self) -> bytes:
        """The bytes that the signature is over."""
        return pae(PAYLOAD_TYPE, self.payload)


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed of a payload: its type, too, and both lengths, so that neither passes for the
    other.
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def write_bundle(payload: bytes, signature: bytes, material: Mapping[str, Any]) -> bytes:
    """The bundle of a statement, its signature over `pae(PAYLOAD_TYPE, payload)`, and what that is checked with."""
    envelope = {"payload": encoded(payload), "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": encoded(signature)}]}
    document = {"mediaType": BUNDLE, "verificationMaterial": dict(material), "dsseEnvelope": envelope}
    return json.dumps(document, separators=(",", ":")).encode()


def read_bundle(data: bytes) -> Bundle:
    """Parse a bundle. Raises TrustError when it is not one of this version, strictly spelled."""
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
        raise UnreadableError("it signs bare bytes, no statement")
    _table(document, "the bundle", {"mediaType", "verificationMaterial", "dsseEnvelope"})
    material = _table(document["verificationMaterial"], "verificationMaterial", set(), _MATERIAL)
    if ("publicKey" in material) == ("certificate" in material):
        raise UnreadableError("its verificationMaterial names not exactly one of a key and a certificate")
    hint = None
    if "publicKey" in material:
        hint = _text(_table(material["publicKey"], "publicKey", set(), {"hint"}).get("hint", ""), "hint")
    envelope = _table(document["dsseEnvelope"], "dsseEnvelope", {"payload", "payloadType", "signatures"})
    kind = _text(envelope["payloadType"], "payloadType")
    if kind != PAYLOAD_TYPE:
        raise UnreadableError(f"its payloadType is {kind[:100]!r}, not {PAYLOAD_TYPE}")
    signatures = envelope["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise UnreadableError("it has not exactly one signature")
    signature = _table(signatures[0], "the signature", {"sig"}, {"keyid"})
    return Bundle(decoded(envelope["payload"], "payload"), decoded(signature["sig"], "sig"), hint, material)


def encoded(data: bytes) -> str:
    """Base64 as bundles have it: of the standard alphabet, padded."""
    return base64.b64encode(data).decode()


def decoded(value: Any, what: str) -> bytes:
    """The bytes of base64 that has one spelling. Raises UnreadableError."""
    text = _text(value, what)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableError(f"its {what} is not base64") from error
    if encoded(data) != text:
        raise UnreadableError(f"its {what} is not base64 as it is written")
    return data


def _table(
    value: Any, what: str, required: set[str], optional: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableError(f"{what} is no JSON object")
    for name in sorted(required - value.keys()):
        raise UnreadableError(f"{what} has no {name}")
    for name in sorted(value.keys() - required - optional):
        raise UnreadableError(f"{what} has a {name[:100]!r}, which is not known here")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UnreadableError(f"its {what} is no text")
    return value
