"""Bundles: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import TrustError
from imagegen.trust import bundle
from imagegen.trust.bundle import PAYLOAD_TYPE

KEY = {"publicKey": {"hint": "aGludA=="}}
PLAIN = bundle.write_bundle(b"what is said", b"signature", KEY)


def test_what_is_signed_is_as_dsse_says() -> None:
    # The example of DSSE's protocol.md.
    assert bundle.pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert bundle.read_bundle(PLAIN).signed == b"DSSEv1 28 application/vnd.in-toto+json 12 what is said"


@given(st.text(), st.binary(), st.text(), st.binary())
def test_no_two_payloads_are_signed_as_the_same_bytes(kind: str, payload: bytes, other: str, others: bytes) -> None:
    same = (kind, payload) == (other, others)
    try:
        assert (bundle.pae(kind, payload) == bundle.pae(other, others)) is same
    except UnicodeEncodeError:  # a lone surrogate is no media type
        assert "\\ud" in ascii(kind + other)


@given(st.binary(), st.binary(), st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_written_is_read(payload: bytes, signature: bytes, hint: str) -> None:
    found = bundle.read_bundle(bundle.write_bundle(payload, signature, {"publicKey": {"hint": hint}}))
    assert (found.payload, found.signature, found.hint) == (payload, signature, hint)


def test_it_is_as_cosign_writes_it() -> None:
    assert json.loads(PLAIN) == {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "aGludA=="}},
        "dsseEnvelope": {
            "payload": "d2hhdCBpcyBzYWlk",
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": "c2lnbmF0dXJl"}],
        },
    }


def test_a_bundle_with_a_certificate_has_no_key_hint() -> None:
    material = {"certificate": {"rawBytes": "AAAA"}, "tlogEntries": [{"logIndex": "1"}]}
    found = bundle.read_bundle(bundle.write_bundle(b"x", b"y", material))
    assert (found.hint, found.material) == (None, material)


def changed(path: str, value: Any) -> bytes:
    """PLAIN with another value at a path; "-" takes the name away."""
    document = json.loads(PLAIN)
    *way, last = path.split(".")
    place = document
    for name in way:
        place = place[int(name) if name.isdecimal() else name]
    if value == "-":
        del place[last]
    else:
        place[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{}", "its mediaType is None"),
        (changed("mediaType", "application/vnd.dev.sigstore.bundle+json;version=0.2"), "its mediaType is"),
        (changed("messageSignature", {"signature": "AA=="}), "it signs bytes, not a statement"),
        (changed("dsseEnvelope", "-"), "the bundle has no dsseEnvelope"),
        (changed("DsseEnvelope", {}), "the bundle has an unknown field 'DsseEnvelope'"),
        (changed("dsseEnvelope.Payload", "AAAA"), "dsseEnvelope has an unknown field 'Payload'"),
        (changed("dsseEnvelope.payloadType", "application/json"), "its payloadType is 'application/json'"),
        (changed("dsseEnvelope.payloadType", PAYLOAD_TYPE.upper()), "its payloadType is 'APPLICATION"),
        (changed("dsseEnvelope.payload", "d2hhdA"), "its payload is not base64"),
        (changed("dsseEnvelope.payload", "d2hhdB=="), "its payload is not canonical base64"),
        (changed("dsseEnvelope.payload", "d2h\nhdA=="), "its payload is not base64"),
        (changed("dsseEnvelope.payload", "d2hé"), "its payload is not base64"),
        (changed("dsseEnvelope.payload", 7), "its payload is not a string"),
        (changed("dsseEnvelope.signatures", []), "it must have exactly one signature"),
        (changed("dsseEnvelope.signatures", [{"sig": "AAAA"}, {"sig": "AAAA"}]), "it must have exactly one signature"),
        (changed("dsseEnvelope.signatures", {"sig": "AAAA"}), "it must have exactly one signature"),
        (changed("dsseEnvelope.signatures", ["AAAA"]), "the signature is not a JSON object"),
        (changed("dsseEnvelope.signatures.0.Sig", "AAAA"), "the signature has an unknown field 'Sig'"),
        (changed("verificationMaterial", {}), "either a key or a certificate"),
        (changed("verificationMaterial.certificate", {"rawBytes": "AA=="}), "either a key or a cert"),
        (
            changed("verificationMaterial.x509CertificateChain", {}),
            "verificationMaterial has an unknown field 'x509Certificate",
        ),
        (changed("verificationMaterial.publicKey.hint", None), "its hint is not a string"),
        (PLAIN[:-1] + b',"dsseEnvelope":{}}', '"dsseEnvelope" is given twice'),
        (PLAIN + b"{}", "it is not JSON"),
        (b"[" * 200_000, "it is nested too deeply"),
    ],
)
def test_what_is_no_bundle(data: bytes, why: str) -> None:
    with pytest.raises(TrustError) as caught:
        bundle.read_bundle(data)
    assert caught.value.what == "the signature's bundle cannot be read"
    assert why in str(caught.value.why)


@given(st.integers(0, len(PLAIN) - 1), st.binary(max_size=3))
def test_a_changed_byte_is_an_error_or_is_seen(place: int, instead: bytes) -> None:
    data = PLAIN[:place] + instead + PLAIN[place + 1 :]
    try:
        found = bundle.read_bundle(data)
    except TrustError:
        return
    # White space between names does not matter; the rest is the payload, signature or hint of another bundle.
    assert found != bundle.read_bundle(PLAIN) or json.loads(data) == json.loads(PLAIN)
