"""A BuildKit daemon that buildx's driver `remote` reaches over TLS, with certificates on both sides.

Debian has no package of buildkitd. The daemon is that of a Docker engine, which speaks gRPC on its socket after an
upgrade of the connection (POST /grpc, as Docker's own client does it).
"""

from __future__ import annotations

import shlex
import socket
import socketserver
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.tls_proxy import Authority, relay

HOST = "builder.invalid"  # the name in the server's certificate
_UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


class BuildKitPort:
    """A port on loopback that gives the clients of `authority` the BuildKit of the engine at a Unix socket."""

    def __init__(self, engine: str, authority: Authority) -> None:
        context = authority.context(HOST)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.pem)
        context.set_alpn_protocols(["h2"])

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with (
                    suppress(OSError),
                    context.wrap_socket(self.request, server_side=True) as inside,
                    socket.socket(socket.AF_UNIX) as outside,
                ):
                    outside.connect(engine)
                    outside.sendall(_UPGRADE)
                    answer = b""
                    while not answer.endswith(b"\r\n\r\n"):
                        answer += outside.recv(1) or b"\r\n\r\n"
                    relay(inside, outside)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"tcp://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def create_line(name: str, address: str, trusted: Path, client: tuple[Path, Path]) -> str:
    """Return the command that makes the builder: it trusts the CA `trusted` and shows the certificate of `client`."""
    certificate, key = client
    options = f"cacert={trusted},cert={certificate},key={key},servername={HOST}"
    return shlex.join(
        ["docker", "buildx", "create", "--name", name, "--driver", "remote", "--driver-opt", options, address]
    )
