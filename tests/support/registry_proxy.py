"""A proxy before a registry that sees each request."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler

from tests.support.docker_registry import Hub
from tests.support.http_server import Loopback
from tests.support.registry_requests import Wire


class Way(Loopback):
    """The way to a registry: `meet` sees each request first, and says whether it goes on."""

    def __init__(self, hub: Hub) -> None:
        self.requested: list[tuple[str, str]] = []
        self.wire = Wire()
        self.answered = 0  # bytes of the answers' contents
        self.meet: Callable[[str, str], bool] = lambda *_: True
        way = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                way.requested.append((self.command, self.path))
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                way.wire.saw(self.command, self.path, body)
                if not way.meet(self.command, self.path):
                    return
                with closing(http.client.HTTPConnection(hub.host, timeout=60)) as line:
                    line.request(self.command, self.path, body, dict(self.headers))
                    answer = line.getresponse()
                    data = answer.read()
                way.answered += len(data)
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "date"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)
