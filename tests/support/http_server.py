"""Real HTTP servers on loopback, for as long as a test needs them, and how they may answer."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DATA = bytes(range(256)) * 5000
Behaviour = Callable[[BaseHTTPRequestHandler], None]


class _Calm(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no event."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Loopback:
    """Serves from a port of the system's choice until `close`; `host` is "127.0.0.1:PORT"."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self._httpd = _Calm(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self._httpd.server_port}"
        self._thread = threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()


class Server(Loopback):
    """Answers the n-th request with the n-th behaviour; the last one stays."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append((self.path, dict(self.headers)))
                turn = min(len(server.requests), len(server.behaviours)) - 1
                server.behaviours[turn](self)

            do_HEAD = do_CONNECT = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)
        self.url = f"http://{self.host}/file.whl"


class _Files(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # else uv keeps a page for ten minutes
        super().end_headers()

    def log_message(self, *args: object) -> None:
        pass


class Folder(Loopback):
    """Serves the files below `root`; a directory as its index.html."""

    def __init__(self, root: Path) -> None:
        super().__init__(partial(_Files, directory=str(root)))
        self.url = f"http://{self.host}"


def whole(handler: BaseHTTPRequestHandler, data: bytes = DATA, start: int = 0) -> None:
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
    handler.send_header("Content-Length", str(len(data) - start))
    handler.end_headers()
    handler.wfile.write(data[start:])


def ranged(handler: BaseHTTPRequestHandler) -> None:
    start = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-")
    whole(handler, start=int(start))


def cut(after: int) -> Behaviour:
    """Promise the whole file, send `after` bytes from the range's start on, and hang up."""

    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")
        handler.send_header("Content-Length", str(len(DATA) - start))
        handler.end_headers()
        handler.wfile.write(DATA[start : start + after])

    return behaviour


def status(code: int, **headers: str) -> Behaviour:
    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return behaviour


def raw(data: bytes) -> Behaviour:
    """Send these bytes, status line and all, and hang up."""

    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)

    return behaviour


def drip(data: bytes, pause: float = 0.05) -> Behaviour:
    """Send these bytes, status line and all, one by one."""

    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        for byte in data:
            handler.wfile.write(bytes([byte]))
            time.sleep(pause)

    return behaviour


def drip_chunks(head: bytes, data: bytes, pause: float) -> Behaviour:
    """Send a head, and then the data as one HTTP chunk after the other, without an end."""

    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(head)
        while True:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            time.sleep(pause)

    return behaviour


def stalling(data: bytes, sent: int) -> Behaviour:
    """Announce the data, and send no more than its first `sent` bytes."""

    def behaviour(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:sent])
        handler.wfile.flush()
        threading.Event().wait(1.0)

    return behaviour


stall = stalling(DATA, 1000)
