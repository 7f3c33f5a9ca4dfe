"""A network that inspects TLS: a private CA, and a proxy that opens every connection and closes it anew."""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.http_server import Loopback


class Authority:
    """A CA in a directory; `pem` is its certificate. OpenSSL makes the keys."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir()
        self.directory, self.name = directory, name
        self.pem, self._key = directory / "ca.pem", directory / "ca.key"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.pem),
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",  # Python 3.13 requires what RFC 5280 does
        )  # fmt: skip

    @property
    def traces(self) -> list[bytes]:
        """Return bytes that show that the certificate was copied: its owner's name, and a line of its own."""
        return [self.name.encode(), max(self.pem.read_bytes().split(b"\n")[1:-2], key=len)]

    def issue(self, host: str, *, days: int = 2) -> tuple[Path, Path]:
        """Return a certificate for `host` and its key, for a server or a client, valid for so many days; -1: until
        yesterday.
        """
        key, request, leaf, names = (self.directory / f"{host}.{kind}" for kind in ("key", "csr", "pem", "ext"))
        names.write_text(f"subjectAltName=DNS:{host}\nauthorityKeyIdentifier=keyid\n")
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={host}",
            "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.pem), "-CAkey", str(self._key), "-CAcreateserial",
            "-days", str(days), "-extfile", str(names), "-out", str(leaf),
        )  # fmt: skip
        return leaf, key

    def context(self, host: str, *, days: int = 2) -> ssl.SSLContext:
        """Return the context of a server with a certificate for `host`; `days` as in `issue`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(host, days=days))
        return context

    @staticmethod
    def _openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class SecureLoopback(Loopback):
    """`Loopback` behind TLS."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler], context: ssl.SSLContext) -> None:
        super().__init__(handler)
        # The handshake waits for the first read, in a thread of its own: one slow client must not hold up the others.
        self._httpd.socket = context.wrap_socket(self._httpd.socket, server_side=True, do_handshake_on_connect=False)


class InspectingProxy(Loopback):
    """Whatever is asked for by CONNECT is `upstream`, reached by TLS, and shown under the proxy's own certificate."""

    def __init__(self, context: ssl.SSLContext, upstream: str, trusted: Path) -> None:
        self.connects: list[str] = []
        proxy, (host, port) = self, upstream.split(":")
        outward = ssl.create_default_context(cafile=str(trusted))
        outward.check_hostname = False  # the upstream is known by its address here

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.connects.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.close_connection = True
                with suppress(OSError):
                    inside = context.wrap_socket(self.connection, server_side=True)
                    with inside, outward.wrap_socket(socket.create_connection((host, int(port)))) as outside:
                        relay(inside, outside)

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)


def relay(one: ssl.SSLSocket, other: socket.socket) -> None:
    """Until either side ends; in one thread, since OpenSSL's connections bear only one."""
    while True:
        pending = [sock for sock in (one, other) if isinstance(sock, ssl.SSLSocket) and sock.pending()]
        for source in pending or select.select([one, other], [], [])[0]:
            data = source.recv(1 << 16)
            if not data:
                return
            (other if source is one else one).sendall(data)
