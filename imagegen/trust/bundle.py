"""Write and parse Sigstore bundles, version 0.3, as a registry stores a signed statement in a DSSE envelope. Pure.

Sources: sigstore/protobuf-specs, sigstore_bundle.proto (0.3.x with exactly one signature in the envelope, one
certificate or one key's hint) in its JSON form; secure-systems-lab/dsse, protocol.md (pre-authentication encoding); and
bundles of cosign 3.1.1, whose hint is the base64 of the SHA-256 of the key's SubjectPublicKeyInfo.

Unknown names are rejected. A name that differs only in case is another name for this reader, and the same name for
Go's reader, which would then read other content than this reader verified.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagegen.core.errors import TrustError
from imagegen.trust.documents import BUNDLE
from imagegen.trust.strict_json import UnreadableError, parse

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
