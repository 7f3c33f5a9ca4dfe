"""The stand-in of tests/registry.py as a registry that takes what is pushed, written from the same specifications.

It is no real registry, and fails on request; a real one is in tests/integration/test_registry_push.py.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.registry import StandIn, basic, digest_of, send

_UPLOAD = re.compile(r"/v2/(.+)/blobs/uploads/([0-9]*)")
_MANIFEST = re.compile(r"/v2/(.+)/manifests/([^/]+)")
Fault = Callable[[BaseHTTPRequestHandler], bool]  # whether it has answered, or hung up


class Writable(StandIn):
    """Keeps what comes in `documents`, as if `StandIn.push` had put it there.

    `faults` see every request first. `keeps` is what stays of a request that breaks off: "all" that came, "none" of it,
    or not even the upload ("gone"), as distribution has it. `asked` are methods and paths, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.uploads: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.keeps = "all"
        self.chunked = True  # whether it takes a blob in pieces
        self.mounts = True
        self.polite = True  # whether it hears a request out before it refuses it
        self.minimum: int | None = None  # OCI-Chunk-Min-Length
        self.scopes: list[list[str]] = []  # of the tokens it gave
        self.lives: int | None = None  # requests that a token is good for
        self._given = self._used = self._begun = 0
        self._guard = threading.Lock()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        with self._guard:
            self.asked.append((handler.command, handler.path))
        if any(fault(handler) for fault in self.faults):
            return
        if handler.command in ("GET", "HEAD") and not _UPLOAD.fullmatch(path):
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
        elif handler.command == "PATCH":
            start, _, end = handler.headers.get("Content-Range", "").partition("-")
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

    def _manifest(self, handler: BaseHTTPRequestHandler, repository: str, asked: str) -> None:
        data, _ = received(handler)
        document = json.loads(data)
        blobs = [document["config"], *document["layers"]]
        if any(f"/v2/{repository}/blobs/{blob['digest']}" not in self.documents for blob in blobs):
            send(handler, 404, error("MANIFEST_BLOB_UNKNOWN"))
            return
        for reference in (digest_of(data), asked):
            self.documents[f"/v2/{repository}/manifests/{reference}"] = (handler.headers["Content-Type"], data)
        self._created(handler, f"/v2/{repository}/manifests/{asked}", digest_of(data))

    def _state(self, handler: BaseHTTPRequestHandler, status: int, repository: str, name: str) -> None:
        more = {"OCI_Chunk_Min_Length": str(self.minimum)} if self.minimum else {}
        there = f"0-{max(0, len(self.uploads[name]) - 1)}"
        send(handler, status, b"", Location=f"/v2/{repository}/blobs/uploads/{name}?_state=s3cret", Range=there, **more)

    def _created(self, handler: BaseHTTPRequestHandler, place: str, digest: str) -> None:
        send(handler, 201, b"", Location=place, Docker_Content_Digest=digest)

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
    """Of the first requests of this method that carry more, so many bytes are read, and then the line is cut."""
    left = [times]

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        length = int(handler.headers.get("Content-Length", "0"))
        if handler.command == method and left[0] and length > after:
            left[0] -= 1
            handler.rfile = _Short(handler.rfile.read(after))  # type: ignore[assignment]
        return False

    return fault


class _Short:
    """What came before the line was cut."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        data, self._data = self._data[:size], self._data[size:]
        return data

    def close(self) -> None:
        pass
