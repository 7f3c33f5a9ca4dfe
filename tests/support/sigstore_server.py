"""A stand-in for GitHub's token service and for Sigstore on loopback, written from their specifications: none is real.

Written from: GitHub's documentation, "OpenID Connect reference"; Fulcio's HTTP interface v2 (fulcio.proto) and
docs/oidc.md; Rekor's interfaces (v1, v2); sigstore/protobuf-specs, sigstore_trustroot.proto; and what
tests/support/sigstore_services.py names. It checks what it is sent as those do, and misbehaves on request.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from tests.support.http_server import Loopback
from tests.support.sigstore_services import SHA256, START, Fulcio, KeyPair, Rekor, Stamper, b64, canonical

ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = "acme/images/.github/workflows/nightly.yml@refs/heads/main"
SUBJECT = f"https://github.com/{WORKFLOW}"
REQUEST_TOKEN = "s3cret-of-the-runner"
TOKEN, CERTIFICATE, STAMP = "/token", "/api/v2/signingCert", "/stamp"
ENTRIES, TILED = "/api/v1/log/entries", "/api/v2/log/entries"
STATEMENT = canonical(
    {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "image", "digest": {"sha256": "ab" * 32}}],
        "predicateType": "https://sigstore.dev/cosign/sign/v1",
        "predicate": {},
    }
)


@dataclass
class Claims:
    """GitHub's claims about a run, except the time."""

    issuer: str = ISSUER
    workflow: str = WORKFLOW
    repository: str | None = None  # that calls the workflow, where it is another one's
    lifetime: timedelta = timedelta(minutes=5)
    skew: timedelta = timedelta(0)  # of GitHub's clock

    def token(self, key: KeyPair, audience: str) -> str:
        """A JWT (RFC 7519), signed as ES256."""
        now = datetime.now(UTC) + self.skew
        repository = self.repository or self.workflow.partition("/.github/")[0]
        ref = self.workflow.partition("@")[2]
        claims = {
            "iss": self.issuer, "aud": audience, "sub": f"repo:{repository}:ref:{ref}", "jti": "1",
            "iat": int(now.timestamp()), "nbf": int(now.timestamp()), "exp": int((now + self.lifetime).timestamp()),
            "repository": repository, "ref": ref, "workflow": "nightly", "workflow_ref": self.workflow,
            "job_workflow_ref": self.workflow, "event_name": "schedule", "sha": "0" * 40,
        }  # fmt: skip
        head = {"alg": "ES256", "typ": "JWT"}
        text = ".".join(base64.urlsafe_b64encode(canonical(part)).decode().rstrip("=") for part in (head, claims))
        return f"{text}.{base64.urlsafe_b64encode(key.sign(text.encode())).decode().rstrip('=')}"


@dataclass
class Fault:
    """Instead of an answer."""

    status: int
    body: bytes = b""
    times: int = 1 << 30
    silence: float = 0.0  # seconds before it


class Sigstore(Loopback):
    """All of it behind one port. `faults` maps a path to what is answered there; `config` goes to publish.yaml."""

    def __init__(self, directory: Path) -> None:
        self.claims, self.tokens, self.fulcio = Claims(), KeyPair(), Fulcio()
        self.token = "none yet"  # the last one that it gave
        self.stamper: Stamper | None = None
        self.version = 1  # of the log's interface that it names
        self.closing = threading.Event()
        self.faults: dict[str, Fault] = {}
        self.requests: list[str] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = stand_in.answer(urlsplit(self.path).path, self, body)
                if stand_in.closing.is_set():
                    return  # the client has gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)
        self.url = f"http://{self.host}"
        self.rekor = Rekor(self.host.partition(":")[0])
        self.config = directory / "sigstore.json"
        self.config.write_text(json.dumps(self.trust()))

    def close(self) -> None:
        self.closing.set()
        super().close()

    def stamps(self, version: int = 1) -> None:
        """From now on it says when it saw a signature, too, and has its log kept through this interface."""
        self.stamper, self.version = Stamper(self.config.parent / "stamper"), version
        self.config.write_text(json.dumps(self.trust()))

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that GitHub sets for a job with the permission id-token: write."""
        return {
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.url}{TOKEN}?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": REQUEST_TOKEN,
        }

    def trust(self) -> dict[str, Any]:
        """A ClientTrustConfig: sigstore_trustroot.proto."""
        roots = [self.fulcio.issuer, self.fulcio.root]
        service = {"url": self.url, "majorApiVersion": 1, "operator": "stand-in", "validFor": {"start": START}}
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self.rekor.key.log(self.url)],
            "certificateAuthorities": [_authority(self.url, roots)],
            "ctlogs": [self.fulcio.ct.log(f"{self.url}/ct")],
            "timestampAuthorities": [],
        }
        signing = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service], "oidcUrls": [], "rekorTlogUrls": [service | {"majorApiVersion": self.version}],
            "rekorTlogConfig": {"selector": "ANY"}, "tsaUrls": [], "tsaConfig": {"selector": "ANY"},
        }  # fmt: skip
        if self.stamper:
            chain = [self.stamper.leaf, self.stamper.root]
            root["timestampAuthorities"] = [_authority(f"{self.url}{STAMP}", chain)]
            signing["tsaUrls"] = [service | {"url": f"{self.url}{STAMP}"}]
        kind = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
        return {"mediaType": kind, "trustedRoot": root, "signingConfig": signing}

    def answer(self, path: str, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        self.requests.append(path)
        fault = self.faults.get(path)
        if fault and fault.times > 0:
            fault.times -= 1
            self.closing.wait(fault.silence)
            return fault.status, fault.body
        answers: dict[str, Callable[[], tuple[int, bytes]]] = {
            TOKEN: lambda: self._token(handler),
            CERTIFICATE: lambda: self._certificate(handler.headers.get("Authorization", ""), json.loads(body)),
            ENTRIES: lambda: _kept(self.rekor.add, body),
            TILED: lambda: _kept(self.rekor.add_tiled, body),
        }
        if stamper := self.stamper:
            answers[STAMP] = lambda: (201, stamper.stamp(body))
        return answers[path]() if path in answers else (404, b"")

    def _token(self, handler: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        if handler.headers.get("Authorization") != f"Bearer {REQUEST_TOKEN}":
            return 401, b"{}"
        audience = parse_qs(urlsplit(handler.path).query).get("audience", ["https://github.com/acme"])[0]
        self.token = self.claims.token(self.tokens, audience)
        return 200, json.dumps({"count": 1, "value": self.token}).encode()

    def _certificate(self, authorization: str, requested: dict[str, str]) -> tuple[int, bytes]:
        token = authorization.removeprefix("Bearer ")
        text, _, signature = token.rpartition(".")
        public = self.tokens.private.public_key()
        try:
            public.verify(base64.urlsafe_b64decode(signature + "=="), text.encode(), SHA256)
            claims = json.loads(base64.urlsafe_b64decode(text.partition(".")[2] + "=="))
            request = x509.load_pem_x509_csr(base64.b64decode(requested["certificateSigningRequest"]))
        except (InvalidSignature, ValueError, KeyError):
            return 401, b'{"code":16,"message":"There was an error processing the identity token","details":[]}'
        if claims["aud"] != "sigstore" or not request.is_signature_valid:
            return 400, b'{"code":3,"message":"There was an error processing the request","details":[]}'
        chain = [self.fulcio.certify(claims, request.public_key()), self.fulcio.issuer, self.fulcio.root]
        pems = [each.public_bytes(serialization.Encoding.PEM).decode() for each in chain]
        return 200, json.dumps({"signedCertificateEmbeddedSct": {"chain": {"certificates": pems}}}).encode()


def _kept(add: Callable[[dict[str, Any]], dict[str, Any]], body: bytes) -> tuple[int, bytes]:
    try:
        return 201, json.dumps(add(json.loads(body))).encode()
    except (InvalidSignature, KeyError, ValueError) as error:
        return 400, json.dumps({"code": 400, "message": repr(error)}).encode()


def _authority(url: str, chain: list[x509.Certificate]) -> dict[str, Any]:
    certificates = [{"rawBytes": b64(each.public_bytes(serialization.Encoding.DER))} for each in chain]
    return {
        "subject": {"organization": "stand-in", "commonName": "stand-in"}, "uri": url,
        "certChain": {"certificates": certificates}, "validFor": {"start": START},
    }  # fmt: skip
