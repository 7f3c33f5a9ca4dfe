"""A signed statement as it lies in a registry: a DSSE envelope in a Sigstore bundle, version 0.3. Pure.

Sources: sigstore/protobuf-specs, sigstore_bundle.proto (0.3.x: exactly one signature in the envelope, one certificate
or one key's hint) in its JSON form; secure-systems-lab/dsse, protocol.md (pre-authentication encoding); and what cosign
3.1.1 writes, whose hint is the base64 of the SHA-256 of the key's SubjectPublicKeyInfo.

The reader takes nothing that it does not know: a name that differs in case alone is another name here and the same
name to Go's reader, and what is read must be what was verified.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagegen.core.errors import TrustError
from imagegen.supply.trust.documents import BUNDLE
from imagegen.supply.trust.statement import UnreadableError, parse

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


def write(payload: bytes, signature: bytes, material: Mapping[str, Any]) -> bytes:
    """The bundle of a statement, its signature over `pae(PAYLOAD_TYPE, payload)`, and what that is checked with."""
    envelope = {"payload": encoded(payload), "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": encoded(signature)}]}
    document = {"mediaType": BUNDLE, "verificationMaterial": dict(material), "dsseEnvelope": envelope}
    return json.dumps(document, separators=(",", ":")).encode()


def read(data: bytes) -> Bundle:
    """Parse a bundle. Raises TrustError when it is not one of this version, strictly spelled."""
    try:
        return _read(parse(data))
    except UnreadableError as error:
        raise TrustError(
            "the signature's bundle cannot be read", code="trust-bundle-malformed", why=str(error)
        ) from error


def _read(document: dict[str, Any]) -> Bundle:
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
