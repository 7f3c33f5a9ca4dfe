"""The stand-in of registry_server.py as a registry that takes what is pushed, written from the same specifications.

So is its referrers API (distribution-spec v1.1, "Listing Referrers"), which no registry that Debian packages has. It is
no real registry, and fails on request; a real one is in tests/integration/test_registry_push.py.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.support.registry_server import INDEX, StandIn, basic, digest_of, send

_UPLOAD = re.compile(r"/v2/(.+)/blobs/uploads/([0-9]*)")
_REFERRERS = re.compile(r"/v2/(.+)/referrers/([^/]+)")
_TAGS = re.compile(r"/v2/(.+)/tags/list")
_MANIFEST = re.compile(r"/v2/(.+)/manifests/([^/]+)")
Fault = Callable[[BaseHTTPRequestHandler], bool]  # whether it has answered, or hung up


class Writable(StandIn):
    """Keeps what comes in `documents`, as if `StandIn.push` had put it there.

    `faults` see every request first. `keeps` is what stays of a request that breaks off: "all" that came, "none" of it,
    or not even the upload ("gone"), as distribution has it. `requested` are methods and paths, in order. With
    `referrers` it lists them, `page` of them (and of tags) at a time, and looks at the filter where it `filters`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.uploads: dict[str, bytes] = {}
        self.requested: list[tuple[str, str]] = []
        self.keeps = "all"
        self.chunked = True  # whether it takes a blob in pieces
        self.mounts = True
        self.polite = True  # whether it reads a request to its end before it refuses it
        self.minimum: int | None = None  # OCI-Chunk-Min-Length
        self.referrers = False
        self.filters = True
        self.page = 1000
        self.scopes: list[list[str]] = []  # of the tokens it gave
        self.lives: int | None = None  # requests that a token is good for
        self._given = self._used = self._begun = 0
        self._guard = threading.Lock()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        with self._guard:
            self.requested.append((handler.command, handler.path))
        if any(fault(handler) for fault in self.faults):
            return
        allowed = self._allows if _TAGS.fullmatch(path) or _REFERRERS.fullmatch(path) else None
        if allowed and allowed(handler.headers.get("Authorization")) and handler.command == "GET":
            self._list(handler, path)
        elif handler.command in ("GET", "HEAD") and not _UPLOAD.fullmatch(path):
            super().answer(handler)
        elif not self._allows(handler.headers.get("Authorization")):
            if self.polite:
                received(handler)
            super().answer(handler)  # its challenge
        elif found := _UPLOAD.fullmatch(path):
            self._upload(handler, found[1], found[2])
        elif (found := _MANIFEST.fullmatch(path)) and handler.command == "PUT":
            self._manifest(handler, found[1], found[2])
        else:
            send(handler, 405, b"")

    def _upload(self, handler: BaseHTTPRequestHandler, repository: str, name: str) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(handler.path).query).items()}
        if handler.command == "POST" and not name:
            self._begin(handler, repository, query)
        elif name not in self.uploads:
            received(handler)
            send(handler, 404, error("BLOB_UPLOAD_UNKNOWN"))
        elif handler.command == "GET":
            self._state(handler, 204, repository, name)
        elif handler.command == "DELETE":
            del self.uploads[name]
            send(handler, 204, b"")
        elif handler.command == "PATCH":
            there = len(self.uploads[name])  # where all that is to come comes at once, as some clients send it
            length = int(handler.headers.get("Content-Length", "0"))
            whole = f"{there}-{there + length - 1}"
            start, _, end = handler.headers.get("Content-Range", whole).partition("-")
            if not self.chunked or int(start) != len(self.uploads[name]):
                received(handler)
                send(handler, 416 if self.chunked else 405, error("UNSUPPORTED"))
            elif self._take(handler, name):
                assert int(end) + 1 == len(self.uploads[name])
                self._state(handler, 202, repository, name)
        elif handler.command == "PUT" and self._take(handler, name):
            data = self.uploads.pop(name)
            if digest_of(data) != query.get("digest"):
                send(handler, 400, error("DIGEST_INVALID"))
            else:
                self.blob(repository, data, "")
                self._created(handler, f"/v2/{repository}/blobs/{digest_of(data)}", digest_of(data))

    def _begin(self, handler: BaseHTTPRequestHandler, repository: str, query: dict[str, str]) -> None:
        there = self.documents.get(f"/v2/{query.get('from')}/blobs/{query.get('mount')}")
        if there and self.mounts:
            self.blob(repository, there[1], "")
            self._created(handler, f"/v2/{repository}/blobs/{query['mount']}", query["mount"])
            return
        with self._guard:
            self._begun += 1
            name = str(self._begun)
        self.uploads[name] = b""
        self._state(handler, 202, repository, name)

    def _take(self, handler: BaseHTTPRequestHandler, name: str) -> bool:
        data, whole = received(handler)
        if whole or self.keeps == "all":
            self.uploads[name] += data
        elif self.keeps == "gone":
            del self.uploads[name]
        return whole

    def _manifest(self, handler: BaseHTTPRequestHandler, repository: str, requested: str) -> None:
        data, _ = received(handler)
        document = json.loads(data)
        blobs = [document["config"], *document["layers"]] if "layers" in document else []
        manifests = document.get("manifests", [])
        parts = [*(("blobs", each) for each in blobs), *(("manifests", each) for each in manifests)]
        if any(f"/v2/{repository}/{kind}/{part['digest']}" not in self.documents for kind, part in parts):
            send(handler, 404, error("MANIFEST_BLOB_UNKNOWN"))
            return
        for reference in (digest_of(data), requested):
            self.documents[f"/v2/{repository}/manifests/{reference}"] = (handler.headers["Content-Type"], data)
        more = {"OCI_Subject": document["subject"]["digest"]} if self.referrers and "subject" in document else {}
        self._created(handler, f"/v2/{repository}/manifests/{requested}", digest_of(data), **more)

    def _list(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(handler.path).query).items()}
        start = int(query.get("last", "0"))
        referring, tagged = _REFERRERS.fullmatch(path), _TAGS.fullmatch(path)
        if tagged:
            whole: list[Any] = self._tags(tagged[1])
            document: dict[str, Any] = {"name": tagged[1], "tags": whole[start : start + self.page]}
            kind = "application/json"
        elif referring and self.referrers:
            whole = self._referring(referring[1], referring[2], query.get("artifactType") if self.filters else None)
            document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": whole[start : start + self.page]}
            kind = INDEX
        if not (tagged and whole) and not (referring and self.referrers):
            send(handler, 404, b"404 page not found")
            return
        more = {"OCI_Filters_Applied": "artifactType"} if "artifactType" in query and self.filters else {}
        if start + self.page < len(whole):
            rest = urlencode({**query, "last": start + self.page})
            more["Link"] = f'<{path}?{rest}>; rel="next"'
        send(handler, 200, json.dumps(document).encode(), Content_Type=kind, **more)

    def _tags(self, repository: str) -> list[str]:
        start = f"/v2/{repository}/manifests/"
        return sorted(name for place in self.documents if ":" not in (name := place.removeprefix(start)) != place)

    def _referring(self, repository: str, subject: str, kind: str | None) -> list[dict[str, Any]]:
        found = {}
        for place, (media_type, data) in self.documents.items():
            document = json.loads(data) if place.startswith(f"/v2/{repository}/manifests/sha256:") else {}
            if (document.get("subject") or {}).get("digest") == subject:
                of = document.get("artifactType") or document["config"]["mediaType"]
                described = {"mediaType": media_type, "digest": digest_of(data), "size": len(data), "artifactType": of}
                found[digest_of(data)] = described | {"annotations": document.get("annotations", {})}
        return [each for each in found.values() if kind in (None, each["artifactType"])]

    def _state(self, handler: BaseHTTPRequestHandler, status: int, repository: str, name: str) -> None:
        more = {"OCI_Chunk_Min_Length": str(self.minimum)} if self.minimum else {}
        there = f"0-{max(0, len(self.uploads[name]) - 1)}"
        send(handler, status, b"", Location=f"/v2/{repository}/blobs/uploads/{name}?_state=s3cret", Range=there, **more)

    def _created(self, handler: BaseHTTPRequestHandler, place: str, digest: str, **more: str) -> None:
        send(handler, 201, b"", Location=place, Docker_Content_Digest=digest, **more)

    def _allows(self, authorization: str | None) -> bool:
        if self.token is None or self.basic or self.lives is None:
            return super()._allows(authorization)
        with self._guard:
            self._used += 1
            return authorization == f"Bearer {self.token}-{self._given}" and self._used <= self.lives

    def _give_token(self, handler: BaseHTTPRequestHandler, authorization: str | None) -> None:
        self.scopes.append(parse_qs(urlsplit(handler.path).query).get("scope", []))
        if self.user and authorization != basic(self.user):
            send(handler, 401, b"")
            return
        with self._guard:
            self._given, self._used = self._given + 1, 0
            token = self.token if self.lives is None else f"{self.token}-{self._given}"
        send(handler, 200, json.dumps({"token": token}).encode())


def received(handler: BaseHTTPRequestHandler) -> tuple[bytes, bool]:
    """The request's body, as far as it came, and whether that is all of it."""
    length = int(handler.headers.get("Content-Length", "0"))
    data = handler.rfile.read(length)
    return data, len(data) == length


def error(code: str, message: str = "") -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


def answering(status: int, *methods: str, times: int = 1 << 30, body: bytes = b"", **headers: str) -> Fault:
    """These methods get this answer, so many times."""
    left = [times]

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command not in methods or "token" in handler.path or not left[0]:
            return False
        left[0] -= 1
        received(handler)
        send(handler, status, body, **headers)
        return True

    return fault


def every(nth: int, status: int) -> Fault:
    """Each nth request fails with this status."""
    count = [0]

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        count[0] += 1
        if count[0] % nth:
            return False
        received(handler)
        send(handler, status, b"")
        return True

    return fault


def dropping(after: int, method: str, times: int = 1) -> Fault:
    """Return a behaviour: for the first such requests that carry more, read so many bytes, then close
    the connection.
    """
    left = [times]

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        length = int(handler.headers.get("Content-Length", "0"))
        if handler.command == method and left[0] and length > after:
            left[0] -= 1
            handler.rfile = _Short(handler.rfile.read(after))  # type: ignore[assignment]
        return False

    return fault


class _Short:
    """The bytes that came before the connection was closed."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        data, self._data = self._data[:size], self._data[size:]
        return data

    def close(self) -> None:
        pass
