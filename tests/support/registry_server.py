"""A stand-in for a container registry on loopback, written from OCI distribution-spec v1.1 and Docker's token
specification: it is no real registry, and behaves badly on request. The real one is in tests/integration.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import Loopback

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER = {
    MANIFEST: "application/vnd.docker.distribution.manifest.v2+json",
    INDEX: "application/vnd.docker.distribution.manifest.list.v2+json",
    CONFIG: "application/vnd.docker.container.image.v1+json",
    LAYER: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
Answer = Callable[[BaseHTTPRequestHandler], None]


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar stream, uncompressed."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


class StandIn(Loopback):
    """Serves what `push` was given, at `host`; `instead` maps a path to what is answered in its place.

    With `token`, every request needs it, and the realm gives it to `user` alone where one is set. `elsewhere` is who
    gets the requests for blobs, by redirect.
    """

    def __init__(self) -> None:
        self.documents: dict[str, tuple[str, bytes]] = {}  # path -> media type, bytes
        self.instead: dict[str, Answer] = {}
        self.requests: list[tuple[str, str | None]] = []  # path, Authorization
        self.token: str | None = None
        self.user: str | None = None  # "name:password"
        self.basic = False  # it wants the password itself, no token
        self.realm: str | None = None
        self.elsewhere: str | None = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self)

            do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)

    def push(self, name: str, layers: list[bytes], *, index: bool = True, docker: bool = False, **config: Any) -> str:
        """An image of these uncompressed layers under NAME:TAG; the digest of its manifest."""
        kinds = DOCKER if docker else {kind: kind for kind in DOCKER}
        repository, _, tag = name.partition(":")
        blobs = [gzip.compress(layer, 1, mtime=0) for layer in layers]
        rootfs = {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]}
        settings = {"os": "linux", "architecture": "amd64", "rootfs": rootfs, "config": config}
        data = json.dumps(settings).encode()
        manifest = self.put(
            repository,
            {
                "schemaVersion": 2,
                "mediaType": kinds[MANIFEST],
                "config": self.blob(repository, data, kinds[CONFIG]),
                "layers": [self.blob(repository, blob, kinds[LAYER]) for blob in blobs],
            },
            *([] if index else [tag]),
        )
        if index:
            entries = [
                manifest | {"platform": {"os": "unknown", "architecture": "unknown"}},
                manifest | {"platform": {"os": "linux", "architecture": "arm64"}, "digest": "sha256:" + "0" * 64},
                manifest | {"platform": {"os": "linux", "architecture": "amd64"}},
            ]
            self.put(repository, {"schemaVersion": 2, "mediaType": kinds[INDEX], "manifests": entries}, tag)
        return str(manifest["digest"])

    def put(self, repository: str, document: dict[str, Any], *tags: str) -> dict[str, Any]:
        data = json.dumps(document).encode()
        for reference in (digest_of(data), *tags):
            path = f"/v2/{repository}/manifests/{reference}"
            self.documents[path] = (document.get("mediaType", MANIFEST), data)
        return {"mediaType": document.get("mediaType"), "digest": digest_of(data), "size": len(data)}

    def blob(self, repository: str, data: bytes, kind: str) -> dict[str, Any]:
        self.documents[f"/v2/{repository}/blobs/{digest_of(data)}"] = ("application/octet-stream", data)
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, authorization = urlsplit(handler.path).path, handler.headers.get("Authorization")
        self.requests.append((handler.path, authorization))
        if path in self.instead:
            self.instead[path](handler)
        elif path == "/token":
            self._give_token(handler, authorization)
        elif not self._allows(authorization):
            realm = self.realm or f"http://{self.host}/token"
            challenge = 'Basic realm="x"' if self.basic else f'Bearer realm="{realm}",service="stand-in",scope="x"'
            send(handler, 401, b"", WWW_Authenticate=challenge)
        elif path == "/v2/":
            send(handler, 200, b"{}")
        elif self.elsewhere and "/blobs/" in path:
            send(handler, 307, b"", Location=f"http://{self.elsewhere}{path}?signature=secret")
        elif path in self.documents:
            kind, data = self.documents[path]
            more = {"Docker_Content_Digest": digest_of(data)} if "/manifests/" in path else {}
            send(handler, 200, data, Content_Type=kind, **more)
        else:
            send(handler, 404, b"")

    def _allows(self, authorization: str | None) -> bool:
        if self.basic:
            return authorization == basic(str(self.user))
        return self.token is None or authorization == f"Bearer {self.token}"

    def _give_token(self, handler: BaseHTTPRequestHandler, authorization: str | None) -> None:
        scope = parse_qs(urlsplit(handler.path).query).get("scope", [""])[0]
        if not scope.startswith("repository:") or not scope.endswith(":pull"):
            send(handler, 400, b"")
        elif self.user and authorization != basic(self.user):
            send(handler, 401, b"")
        else:
            send(handler, 200, json.dumps({"token": self.token, "expires_in": 60}).encode())


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


def send(handler: BaseHTTPRequestHandler, status: int, data: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
