"""Secrets that are planted, and the search for them: in files, blobs, output, and the arguments of processes."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import zstandard

from tests.support.http_server import Loopback

USER, PASSWORD = "canary-user", "p4ss/w@rd:c4n4ry"  # special in addresses, so that encodings are searched for too


def address(host: str, user: str = USER, password: str = PASSWORD) -> str:
    return f"http://{quote(user, safe='')}:{quote(password, safe='')}@{host}"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def forms(*secrets: str) -> set[bytes]:
    """Every form in which a password may be written down."""
    found = set()
    for secret in secrets:
        found |= {secret, quote(secret, safe=""), quote(secret), base64.b64encode(f"{USER}:{secret}".encode()).decode()}
    return {form.encode() for form in found}


class Guarded(Loopback):
    """Serves a directory to clients with the password; `seen` holds the Authorization headers that were sent."""

    def __init__(self, root: Path, user: str = USER, password: str = PASSWORD) -> None:
        self.seen: list[str | None] = []
        server, expected = self, basic(user, password)

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: object) -> None:
                super().__init__(*args, directory=str(root))  # type: ignore[arg-type]

            def send_head(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
                server.seen.append(self.headers.get("Authorization"))
                if server.seen[-1] == expected:
                    return super().send_head()
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return None

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)


class Proxy(Loopback):
    """An HTTP proxy that asks for the password; `seen` holds the addresses that it passed on."""

    def __init__(self, user: str = USER, password: str = PASSWORD) -> None:
        self.seen: list[str] = []
        server, expected = self, basic(user, password)
        opener = build_opener(ProxyHandler({}))

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Proxy-Authorization") != expected:
                    self.send_response(407)
                    self.send_header("Proxy-Authenticate", 'Basic realm="x"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                server.seen.append(self.path)
                requested = Request(self.path, method=self.command)
                if signed := self.headers.get("Authorization"):
                    requested.add_header("Authorization", signed)
                try:
                    answer = opener.open(requested)
                except HTTPError as error:
                    answer = error
                with answer:
                    body = answer.read()
                self.send_response(answer.status)
                for name in ("Content-Type", "Content-Length", "WWW-Authenticate"):
                    if value := answer.headers[name]:
                        self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - the base class's name

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(Handler)


def leaks(needles: Iterable[bytes], roots: Iterable[Path], *, skip: Iterable[Path] = ()) -> list[str]:
    """Files whose names or contents (decompressed too) hold a needle."""
    needles, passed = list(needles), set(skip)
    found = []
    for path in (path for root in roots for path in root.rglob("*")):
        if path in passed or path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if content[:4] == zstandard.MAGIC_NUMBER.to_bytes(4, "little"):
            content += zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
        found += [f"{path}: {needle!r}" for needle in needles if needle in content or needle in str(path).encode()]
    return found


def processes() -> Iterator[str]:
    return filter(str.isdecimal, os.listdir("/proc"))


@contextmanager
def watched(needles: Iterable[bytes]) -> Iterator[list[str]]:
    """Collects the arguments of processes that hold a needle, of all that start while the block runs."""
    needles, found, over = list(needles), list[str](), threading.Event()
    before = set(processes())

    def watch() -> None:
        while not over.wait(0.01):
            for process in set(processes()) - before:
                try:
                    line = Path(f"/proc/{process}/cmdline").read_bytes()
                except OSError:  # it has ended
                    continue
                if any(needle in line for needle in needles):
                    found.append(line.replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
