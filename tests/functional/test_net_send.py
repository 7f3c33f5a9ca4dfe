"""Sending: bodies that are streamed, servers that take none of it, and runs that end meanwhile."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.net.page import CHUNK, Body
from imagegen.core.net.sender import Sender, small
from tests.support.errors import raises
from tests.support.http_server import Loopback
from tests.support.tls_proxy import Authority, SecureLoopback


class Taking(BaseHTTPRequestHandler):
    """Answers with the size of what it got, and how it was announced."""

    def do_PUT(self) -> None:
        got, left = 0, int(self.headers["Content-Length"])
        while data := self.rfile.read(min(left - got, CHUNK)):
            got += len(data)
        said = f"{got} {self.headers.get('Transfer-Encoding')}".encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *args: object) -> None:
        pass


def client(**env: str) -> Client:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull, **env})
    return Client(settings, attempts=1, timeout=(0.5, 0.5))


def endless(size: int) -> Body:
    def pieces() -> Iterator[bytes]:
        for _ in range(size // CHUNK):
            yield bytes(CHUNK)

    return Body(size, pieces)


def test_a_body_is_announced_with_its_size() -> None:
    server = Loopback(Taking)
    try:
        reply = Sender(client()).ask("PUT", f"http://{server.host}/", body=endless(8 * CHUNK))
        assert (reply.status, reply.body) == (201, f"{8 * CHUNK} None".encode())
        assert Sender(client()).ask("PUT", f"http://{server.host}/", body=small(b"")).body == b"0 None"
    finally:
        server.close()


@pytest.mark.fault("Network", "a server takes nothing of what is sent to it", "given up after the time limit")
def test_a_server_that_takes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        with raises("fetch-unreachable"):
            Sender(client(), silence=0.5).ask("PUT", url, body=endless(256 * CHUNK))


def test_a_run_that_ends_stops_what_it_sends() -> None:
    server, running = Loopback(Taking), client()

    def pieces() -> Iterator[bytes]:
        while True:
            yield bytes(CHUNK)
            time.sleep(0.01)

    threading.Timer(0.1, running.close).start()
    try:
        with raises("fetch-stopped"):
            Sender(running).ask("PUT", f"http://{server.host}/", body=Body(1 << 40, pieces))
    finally:
        server.close()


def test_nothing_is_sent_to_a_server_without_a_trusted_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours", "Ours")
    server = SecureLoopback(Taking, authority.context("localhost"))
    try:
        url = f"https://localhost:{server.host.partition(':')[2]}/"
        with raises("fetch-untrusted-certificate"):
            Sender(client()).ask("PUT", url, body=small(b"secret"))
        trusting = client(SSL_CERT_FILE=str(authority.pem))
        assert Sender(trusting).ask("PUT", url, body=small(b"secret")).status == 201
    finally:
        server.close()
