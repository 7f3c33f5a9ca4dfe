"""The services of a Sigstore instance as the stand-in has them: keys, certificates, logs, time stamps. None is real.

Written from: Fulcio's docs/certificate-specification.md and oid-info.md; RFC 6962 (signed certificate timestamps,
Merkle trees); Rekor's openapi.yaml (v1) with type dsse 0.0.1; rekor-tiles' CLIENTS.md and protobuf-specs' rekor/v2 with
hashedrekord 0.0.2; C2SP tlog-checkpoint and signed-note; RFC 8785. OpenSSL makes the time stamps (RFC 3161).
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

START = "2020-01-01T00:00:00Z"
SHA256 = ec.ECDSA(hashes.SHA256())
_FULCIO = "1.3.6.1.4.1.57264.1"
_SCT_LIST = "1.3.6.1.4.1.11129.2.4.2"
_DAY = timedelta(days=1)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def canonical(document: Any) -> bytes:
    """RFC 8785, for what has no floats and only ASCII keys."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def der(tag: int, data: bytes) -> bytes:
    """One value of ASN.1 in DER."""
    size = len(data)
    length = (
        bytes([size])
        if size < 128
        else bytes([0x80 + (size.bit_length() + 7) // 8]) + size.to_bytes((size.bit_length() + 7) // 8)
    )
    return bytes([tag]) + length + data


class KeyPair:
    """An EC P-256 key; `id` is the digest of its public part, as logs are named."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.spki = self.private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.id = hashlib.sha256(self.spki).digest()

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data, SHA256)

    def pem(self) -> bytes:
        return self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def log(self, url: str) -> dict[str, Any]:
        """Return a log as a trusted root names it."""
        key = {"rawBytes": b64(self.spki), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": {"start": START}}
        return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": key, "logId": {"keyId": b64(self.id)}}


class Fulcio:
    """A root, an intermediate that issues, and the log of certificates that it shows them to."""

    def __init__(self) -> None:
        self.root_key, self.key, self.ct = KeyPair(), KeyPair(), KeyPair()
        self.skew, self.lifetime = timedelta(0), timedelta(minutes=10)  # of its clock, of a certificate
        self.said: str | None = None  # instead of the token's subject
        self.root = authority("stand-in root", self.root_key, "stand-in root", self.root_key)
        only = usage("CODE_SIGNING")
        self.issuer = authority("stand-in intermediate", self.key, "stand-in root", self.root_key, only)

    def certify(self, claims: dict[str, Any], public: Any) -> x509.Certificate:
        begin = datetime.now(UTC).replace(microsecond=0) + self.skew
        subject = x509.UniformResourceIdentifier(self.said or f"https://github.com/{claims['job_workflow_ref']}")
        builder = profile(None, public, self.issuer.subject, self.key, begin, begin + self.lifetime)
        builder = builder.add_extension(SIGNS, critical=True).add_extension(usage("CODE_SIGNING"), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([subject]), critical=True)
        extensions = {1: "iss", 2: "event_name", 3: "sha", 4: "workflow", 5: "repository", 6: "ref"}
        for number, name in extensions.items():
            builder = _with(builder, f"{_FULCIO}.{number}", claims[name].encode())
        source = f"https://github.com/{claims['repository']}"
        for number, text in {8: claims["iss"], 12: source, 16: source.rpartition("/")[0]}.items():
            builder = _with(builder, f"{_FULCIO}.{number}", der(0x0C, text.encode()))
        # The log signs the certificate without the timestamp that it is about to get: RFC 6962, 3.2.
        bare = builder.sign(self.key.private, hashes.SHA256()).tbs_certificate_bytes
        builder = _with(builder, _SCT_LIST, der(0x04, self._timestamps(bare, begin)))
        return builder.sign(self.key.private, hashes.SHA256())

    def _timestamps(self, bare: bytes, time: datetime) -> bytes:
        """A list of one SignedCertificateTimestamp: RFC 6962, 3.2 and 3.3."""
        millis = int(time.timestamp() * 1000).to_bytes(8)
        signed = b"\0\0" + millis + b"\0\1" + self.key.id + len(bare).to_bytes(3) + bare + b"\0\0"
        signature = self.ct.sign(signed)
        single = b"\0" + self.ct.id + millis + b"\0\0" + b"\4\3" + len(signature).to_bytes(2) + signature
        whole = len(single).to_bytes(2) + single
        return len(whole).to_bytes(2) + whole


def _with(builder: x509.CertificateBuilder, oid: str, value: bytes) -> x509.CertificateBuilder:
    return builder.add_extension(x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value), critical=False)


SIGNS = x509.KeyUsage(
    digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
)  # fmt: skip
CERTIFIES = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


def usage(name: str) -> x509.ExtendedKeyUsage:
    return x509.ExtendedKeyUsage([getattr(ExtendedKeyUsageOID, name)])


def named(name: str | None) -> x509.Name:
    parts = {NameOID.ORGANIZATION_NAME: "stand-in", NameOID.COMMON_NAME: name} if name else {}
    return x509.Name([x509.NameAttribute(kind, part) for kind, part in parts.items() if part])


def profile(
    name: str | None, public: Any, issuer: x509.Name, issuer_key: KeyPair, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    """Return a builder with the fields that every certificate has here."""
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.private.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issued_by, critical=False)
    )


def authority(
    name: str, key: KeyPair, issuer: str, issuer_key: KeyPair, only: x509.ExtendedKeyUsage | None = None
) -> x509.Certificate:
    """A certificate of a CA, for a day to come."""
    now = datetime.now(UTC)
    builder = profile(name, key.private.public_key(), named(issuer), issuer_key, now - _DAY, now + _DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(CERTIFIES, critical=True)
    builder = builder.add_extension(only, critical=False) if only else builder
    return builder.sign(issuer_key.private, hashes.SHA256())


def tree(leaves: list[bytes]) -> bytes:
    """The hash of a Merkle tree: RFC 6962, 2.1."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + tree(leaves[:half]) + tree(leaves[half:])).digest()


def audit_path(index: int, leaves: list[bytes]) -> list[bytes]:
    """Return the audit path of a leaf: RFC 6962, 2.1.1."""
    if len(leaves) == 1:
        return []
    half = 1 << (len(leaves) - 1).bit_length() - 1
    if index < half:
        return [*audit_path(index, leaves[:half]), tree(leaves[half:])]
    return [*audit_path(index - half, leaves[half:]), tree(leaves[:half])]


class Rekor:
    """A log; it begins with entries of others. `add` and `add_tiled` are versions 1 and 2 of its interface.

    Both raise InvalidSignature, KeyError and ValueError for an entry that is none.
    """

    def __init__(self, origin: str) -> None:
        self.key, self.origin = KeyPair(), origin
        self.skew = timedelta(0)  # of its clock
        self.leaves = [b"of somebody", b"of somebody else", b"of a third"]

    def add(self, proposed: dict[str, Any]) -> dict[str, Any]:
        if (proposed["kind"], proposed["apiVersion"]) != ("dsse", "0.0.1"):
            raise ValueError("only dsse 0.0.1 is kept here")
        content = proposed["spec"]["proposedContent"]
        envelope, (verifier,) = json.loads(content["envelope"]), content["verifiers"]
        payload, (signature,) = base64.b64decode(envelope["payload"]), envelope["signatures"]
        kind = envelope["payloadType"].encode()
        pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        public = x509.load_pem_x509_certificate(base64.b64decode(verifier)).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        public.verify(base64.b64decode(signature["sig"]), pae, SHA256)
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(canonical(envelope)).hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": signature["sig"], "verifier": verifier}],
        }
        index, root, path, checkpoint = self._logged("dsse", "0.0.1", spec, f"{self.origin} - 1")
        time = int((datetime.now(UTC) + self.skew).timestamp())
        entry = {
            "body": b64(self.leaves[index]), "integratedTime": time, "logID": self.key.id.hex(), "logIndex": index,
        }  # fmt: skip
        proof = {
            "checkpoint": checkpoint, "hashes": [each.hex() for each in path], "logIndex": index,
            "rootHash": root.hex(), "treeSize": len(self.leaves),
        }  # fmt: skip
        promise = b64(self.key.sign(canonical(entry)))
        return {"24": {**entry, "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}}

    def add_tiled(self, proposed: dict[str, Any]) -> dict[str, Any]:
        requested = proposed["hashedRekordRequestV002"]
        signature, digest = requested["signature"], base64.b64decode(requested["digest"])
        certificate = base64.b64decode(signature["verifier"]["x509Certificate"]["rawBytes"])
        public = x509.load_der_x509_certificate(certificate).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        public.verify(base64.b64decode(signature["content"]), digest, ec.ECDSA(Prehashed(hashes.SHA256())))
        data = {"algorithm": "SHA2_256", "digest": requested["digest"]}
        spec = {"hashedRekordV002": {"data": data, "signature": signature}}
        index, root, path, checkpoint = self._logged("hashedrekord", "0.0.2", spec, self.origin)
        return {
            "logIndex": str(index), "logId": {"keyId": b64(self.key.id)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.2"}, "canonicalizedBody": b64(self.leaves[index]),
            "inclusionProof": {
                "logIndex": str(index), "rootHash": b64(root), "treeSize": str(len(self.leaves)),
                "hashes": [b64(each) for each in path], "checkpoint": {"envelope": checkpoint},
            },
        }  # fmt: skip

    def _logged(
        self, kind: str, version: str, spec: dict[str, Any], origin: str
    ) -> tuple[int, bytes, list[bytes], str]:
        """The entry's place, the tree's hash, what shows that it is in it, and the signed checkpoint that says so."""
        self.leaves.append(canonical({"apiVersion": version, "kind": kind, "spec": spec}))
        root, index = tree(self.leaves), len(self.leaves) - 1
        note = f"{origin}\n{len(self.leaves)}\n{b64(root)}\n"
        signature = b64(self.key.id[:4] + self.key.sign(note.encode()))
        return index, root, audit_path(index, self.leaves), f"{note}\n\u2014 {self.origin} {signature}\n"


class Stamper:
    """Signs timestamps with OpenSSL, an independent implementation."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory, root_key, key = directory, KeyPair(), KeyPair()
        self.root = authority("stand-in stamps", root_key, "stand-in stamps", root_key)
        now = datetime.now(UTC)
        builder = profile(
            "stand-in stamper", key.private.public_key(), self.root.subject, root_key, now - _DAY, now + _DAY
        )
        builder = builder.add_extension(SIGNS, critical=True).add_extension(usage("TIME_STAMPING"), critical=True)
        self.leaf = builder.sign(root_key.private, hashes.SHA256())
        (directory / "key.pem").write_bytes(key.pem())
        (directory / "leaf.pem").write_bytes(self.leaf.public_bytes(serialization.Encoding.PEM))
        (directory / "serial").write_text("01\n")
        (directory / "ts.cnf").write_text(
            f"[tsa]\ndefault_tsa = own\n[own]\nserial = {directory}/serial\ndefault_policy = 1.2.3.4\n"
            "digests = sha256\nsigner_digest = sha256\ness_cert_id_alg = sha256\naccuracy = secs:1\n"
        )

    def stamp(self, query: bytes) -> bytes:
        (self.directory / "query").write_bytes(query)
        command = ["openssl", "ts", "-reply", "-queryfile", "query", "-inkey", "key.pem", "-signer", "leaf.pem"]
        command += ["-config", "ts.cnf", "-out", "reply"]
        subprocess.run(command, cwd=self.directory, check=True, capture_output=True)
        return (self.directory / "reply").read_bytes()
