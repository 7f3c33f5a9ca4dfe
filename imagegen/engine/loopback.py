"""Serve one image of the store on loopback, read-only, for as long as an engine pulls it.

Source: OCI distribution-spec v1.1, the pull half; RFC 9110 section 14 for ranges.
"""

from __future__ import annotations

import http.server
import io
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from imagegen.core.progress import Meter
from imagegen.core.store import Store
from imagegen.oci.documents import Descriptor

_TLS_HANDSHAKE = b"\x16"  # the content type that begins a client's hello, RFC 8446 section 5.1
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Loadable:
    """An image to be loaded: a manifest, its config and layers, each blob once.

    `documents` has by digest the contents of those that `store` need not have.
    """

    store: Store
    manifest: Descriptor
    blobs: tuple[Descriptor, ...]
    documents: Mapping[str, bytes] = field(default_factory=dict)


@dataclass
class Registry:
    """The loopback registry that serves the image, and whether an engine has connected."""

    repository: str  # host:port/path, to be followed by @digest
    reached: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(image: Loadable, meter: Meter) -> Iterator[Registry]:
    """Serve the image's manifest and blobs, nothing else, at a random path on a random port of 127.0.0.1.

    The meter advances, in several threads, by the blob bytes that were sent. The client verifies the digests,
    as the specification requires.
    """
    path = f"imagegen/{secrets.token_hex(16)}"
    resources = {f"/v2/{path}/manifests/{image.manifest.digest}": image.manifest}
    resources |= {f"/v2/{path}/blobs/{blob.digest}": blob for blob in image.blobs}
    server = _Server(image, resources, meter)
    registry = Registry(f"127.0.0.1:{server.server_address[1]}/{path}", server.reached)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # an engine keeps idle connections open

    def __init__(self, image: Loadable, resources: dict[str, Descriptor], meter: Meter) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.image, self.resources, self.meter = image, resources, meter
        self.reached = threading.Event()
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for request in tuple(self._open):
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects; the pull reports what failed."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    rfile: io.BufferedReader
    protocol_version = "HTTP/1.1"
    server_version = "imagegen"

    def handle_one_request(self) -> None:
        # containerd tries TLS first and falls back to plain HTTP only if it reads an HTTP status line in answer.
        if self.rfile.peek(1)[:1] == _TLS_HANDSHAKE:
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self.close_connection = True
            return
        super().handle_one_request()

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if self.path in ("/v2", "/v2/"):
            self._headers(HTTPStatus.OK, "application/json", 0)
            return
        resource = self.server.resources.get(self.path)
        if resource is None:
            self._headers(HTTPStatus.NOT_FOUND, "application/json", 0)
            return
        self.server.reached.set()
        span = _span(self.headers.get("Range"), resource.size)
        if span is None:
            self._headers(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                resource.media_type,
                0,
                ("Content-Range", f"bytes */{resource.size}"),
            )
            return
        start, stop = span
        status, extra = HTTPStatus.OK, [("Docker-Content-Digest", resource.digest), ("Accept-Ranges", "bytes")]
        if (start, stop) != (0, resource.size):
            status = HTTPStatus.PARTIAL_CONTENT
            extra.append(("Content-Range", f"bytes {start}-{stop - 1}/{resource.size}"))
        self._headers(status, resource.media_type, stop - start, *extra)
        if body:
            self._send(resource, start, stop)

    def _send(self, blob: Descriptor, start: int, stop: int) -> None:
        """Let the kernel copy the bytes. A blob shorter than its descriptor ends the connection early."""
        image = self.server.image
        if (document := image.documents.get(blob.digest)) is not None:
            self.wfile.write(document[start:stop])
            return
        with image.store.path(blob.digest).open("rb") as file:
            while start < stop:
                count = self.connection.sendfile(file, start, min(_CHUNK, stop - start))
                if not count:
                    self.close_connection = True
                    return
                start += count
                if "/blobs/" in self.path:
                    self.server.meter.advance(count)
            # The engine has its own copy now; this one need not displace other files in the page cache.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _headers(self, status: HTTPStatus, media_type: str, length: int, *extra: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(length))
        for name, value in extra:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Log nothing, because the pull has its own progress."""


def _span(header: str | None, size: int) -> tuple[int, int] | None:
    """The half-open range of bytes that is requested; everything where there is no usable header; None past the end."""
    match = _RANGE.fullmatch(header or "")
    if match is None:
        return 0, size
    start = int(match[1])
    stop = min(int(match[2]) + 1, size) if match[2] else size
    return (start, stop) if start < stop else None
