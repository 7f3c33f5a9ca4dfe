"""Servers that lie, drip, cut and send elsewhere: retried where sensible, then one sentence; nothing wrong is kept."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, DeniedError, NotFoundError, UnavailableError, UnreachableError
from imagegen.core.net.page import DamagedBody, read_page
from imagegen.core.net.reason import distrust
from imagegen.core.net.sender import Sender
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.http_server import DATA, Behaviour, Server, cut, drip, drip_chunks, ranged, raw, stall, status, whole
from tests.support.tls_proxy import Authority, InspectingProxy, SecureLoopback

SHA = hashlib.sha256(DATA).hexdigest()
HEAD = b"HTTP/1.0 200 OK\r\n"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def client(patience: float = 5.0, silence: float = 0.5, **env: str) -> Client:
    settings = Settings.from_environment({"HOME": "/nonexistent", **env})
    return Client(settings, attempts=3, timeout=(2.0, silence), backoff=0.01, patience=patience)


def fetch(url: str, store: Store, client: Client) -> None:
    client.download(url, store, sha256=SHA, size=len(DATA), meter=Quiet().meter("", 0))
    assert store.read(f"sha256:{SHA}") == DATA


def refused(server: Server, store: Store, client: Client, kind: type[FetchError] = FetchError) -> str:
    """The error's text; the store must be as empty as before, but for what a later try may go on with."""
    with pytest.raises(kind) as caught:
        fetch(server.url, store, client)
    assert type(caught.value) is kind
    assert not store.has(f"sha256:{SHA}")
    assert server.host in str(caught.value)
    return str(caught.value)


@pytest.mark.fault(
    "Network", "a download drips, byte by byte", "given up after a minute for each 256 KiB; names the file"
)
def test_a_body_that_drips_ends(server: Server, store: Store) -> None:
    server.behaviours = [drip(HEAD + f"Content-Length: {len(DATA)}\r\n\r\n".encode() + bytes(10_000), 0.02)]
    start = time.monotonic()
    said = refused(server, store, client(patience=0.3), UnreachableError)
    assert "less than 256 KiB came" in said
    assert "(3 tries)" in said
    assert time.monotonic() - start < 5


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
READERS: dict[str, Callable[[Client, str, Store], object]] = {
    "page": lambda client, url, _: client.page(url),
    "piece": lambda client, url, _: client.piece(url, 0, 1000),
    "download": lambda client, url, store: fetch(url, store, client),
    "stream": lambda client, url, _: client.stream(url, ByteCounter(), size=1000),
    "sender": lambda client, url, _: Sender(client).ask("GET", url),
}


class ByteCounter:
    size = 0

    def write(self, data: bytes, /) -> None:
        self.size += len(data)


@pytest.mark.fault(
    "Network", "a chunked answer drips, one byte for each chunk", "given up after a minute for each 256 KiB"
)
@pytest.mark.parametrize("reader", READERS)
def test_a_chunked_body_that_drips_ends(reader: str, server: Server, store: Store) -> None:
    server.behaviours = [drip_chunks(CHUNKED + b"\r\n", b"x", 0.02)]
    if reader == "piece":
        head = CHUNKED.replace(b"200 OK", b"206 Partial Content") + b"Content-Range: bytes 0-999/1000\r\n\r\n"
        server.behaviours = [drip_chunks(head, b"x", 0.02)]
    with pytest.raises(FetchError) as caught:
        READERS[reader](client(patience=0.3), server.url, store)
    # What was cut is not begun again in the middle by a server without ranges.
    assert caught.value.code == ("fetch-incomplete" if reader == "stream" else "fetch-unreachable")
    assert reader == "stream" or "less than 256 KiB came" in str(caught.value.why)


@pytest.mark.parametrize("length", [1000, 1 << 18, (1 << 18) + 1, len(DATA)])
def test_a_chunked_body_comes_whole(length: int, server: Server, store: Store) -> None:
    pieces = [DATA[start : start + length] for start in range(0, len(DATA), length)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    server.behaviours = [raw(CHUNKED + b"\r\n" + body + b"0\r\n\r\n")]
    fetch(server.url, store, client())
    assert client().get(server.url) == DATA


@pytest.mark.fault(
    "Network", "a gzip drips in chunks, or goes on behind its end or without contents", "given up, or its end ignored"
)
def test_a_chunked_gzip_ends(server: Server) -> None:
    page = gzip.compress(b"page")
    zipped = CHUNKED + b"Content-Encoding: gzip\r\n\r\n"
    server.behaviours = [drip_chunks(zipped + b"%x\r\n%b\r\n" % (len(page) - 8, page[:-8]), b"x", 0.02)]
    with raises("fetch-unreachable"):
        client(patience=0.3).get(server.url)
    server.behaviours = [drip_chunks(zipped + b"%x\r\n%b\r\n" % (len(page), page), bytes(1 << 16), 0.001)]
    assert client().get(server.url) == b"page"
    empty_blocks = page[:10] + b"\0\0\0\xff\xff" * 1000
    with pytest.raises(DamagedBody, match="longer than 1000 bytes"):
        read_page(iter([empty_blocks]), "gzip", server.url, 1000)


@pytest.mark.fault("Network", "headers drip, byte by byte", "given up after a minute; names the file")
@pytest.mark.parametrize("start", [b"", HEAD, HEAD + b"X-A: b\r\n"], ids=["status", "first", "second"])
def test_headers_that_drip_end(start: bytes, server: Server, store: Store) -> None:
    server.behaviours = [drip(start + b"X" * 10_000, 0.02)]
    assert "less than 256 KiB came" in refused(server, store, client(patience=0.3), UnreachableError)


@pytest.mark.fault("Network", "a proxy drips its answer to CONNECT", "given up after a minute; names the file")
def test_a_proxy_that_drips_ends(server: Server) -> None:
    server.behaviours = [drip(HEAD + b"X" * 10_000, 0.02)]
    with raises("fetch-unreachable"):
        client(patience=0.3, https_proxy=f"http://{server.host}").get("https://elsewhere.invalid/x")


@pytest.mark.fault("Network", "a server accepts and never says a word", "given up after 30 s of silence, five times")
def test_silence_ends(server: Server, store: Store) -> None:
    server.behaviours = [lambda handler: threading.Event().wait(2)]  # type: ignore[list-item, return-value]
    assert "timed out" in refused(server, store, client(silence=0.2), UnreachableError)
    assert len(server.requests) == 3


@pytest.mark.fault("Network", "a host is dead, and many files are on it", "asked in vain once, not for every file")
def test_a_dead_host_is_given_up_for_all_files(server: Server) -> None:
    server.behaviours = [raw(b"")]
    asking = client()
    for number in range(5):
        with raises("fetch-unreachable"):
            asking.get(f"http://{server.host}/{number}")
    assert len(server.requests) == 3


def test_one_bad_file_does_not_make_its_host_dead(server: Server) -> None:
    server.behaviours = [status(500), status(500), status(500), lambda handler: whole(handler, b"page")]
    asking = client()
    with pytest.raises(UnreachableError):
        asking.get(server.url)
    assert asking.get(server.url) == b"page"


@pytest.mark.fault("Network", "close, Ctrl-C or a failure elsewhere while a download hangs", "it ends at once")
def test_close_ends_what_hangs(server: Server, store: Store) -> None:
    server.behaviours = [drip(HEAD + f"Content-Length: {len(DATA)}\r\n\r\n".encode() + bytes(10_000), 0.02)]
    hanging = client(silence=60, patience=60)
    threading.Timer(0.3, hanging.close).start()
    start = time.monotonic()
    assert "was stopped" in refused(server, store, hanging)
    assert time.monotonic() - start < 3


@pytest.mark.fault(
    "Network", "the connection is cut at random points, again and again", "resumed where it stopped; verified"
)
def test_cuts_at_random_points(server: Server, store: Store) -> None:
    dice = random.Random(7)
    server.behaviours = [cut(dice.randrange(1 << 18, 1 << 19)) for _ in range(4)] + [
        cut(dice.randrange(100)), raw(b""), ranged,
    ]  # fmt: skip
    fetch(server.url, store, client())
    assert len(server.requests) > 3


@pytest.mark.fault("Network", "every connection is cut after a few bytes", "given up after five tries without headway")
def test_little_headway_is_none(server: Server, store: Store) -> None:
    server.behaviours = [cut(1000)]
    assert "IncompleteRead" in refused(server, store, client(), UnreachableError)
    assert len(server.requests) == 3


@pytest.mark.fault(
    "Network", "the connection is cut in the headers, in the middle, before the last byte", "resumed; verified"
)
@pytest.mark.parametrize("first", [raw(b"HTT"), raw(HEAD + b"Content-Le"), cut(len(DATA) // 2), cut(len(DATA) - 1)])
def test_a_cut_costs_a_try(first: Behaviour, server: Server, store: Store) -> None:
    server.behaviours = [first, ranged]
    fetch(server.url, store, client())


@pytest.mark.fault("Network", "404 or 410", "said at once, without another try")
@pytest.mark.parametrize("code", [404, 410])
def test_gone_is_gone(code: int, server: Server, store: Store) -> None:
    server.behaviours = [status(code)]
    assert str(code) in refused(server, store, client(), NotFoundError)
    assert len(server.requests) == 1


@pytest.mark.fault("Network", "an unexpected 401, 403 or 416", "said at once, without another try")
@pytest.mark.parametrize("code", [400, 401, 403, 416, 451])
def test_refusals_are_final(code: int, server: Server, store: Store) -> None:
    server.behaviours = [status(code)]
    kind = DeniedError if code in (401, 403) else UnavailableError
    assert f"status {code}" in refused(server, store, client(), kind)
    assert len(server.requests) == 1


@pytest.mark.fault("Network", "500, 502, 503, 504 or 429 for a while", "tried again; verified")
@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_passing_faults_pass(code: int, server: Server, store: Store) -> None:
    server.behaviours = [status(code), status(code, Retry_After="0"), ranged]
    fetch(server.url, store, client())


@pytest.mark.fault("Network", "429 with Retry-After as a date", "waits as long as it says; verified")
def test_retry_after_as_a_date(server: Server, store: Store) -> None:
    server.behaviours = [status(429, Retry_After=formatdate(time.time() + 2, usegmt=True)), ranged]
    start = time.monotonic()
    fetch(server.url, store, client())
    assert 0.9 < time.monotonic() - start < 10


@pytest.mark.fault(
    "Network", "429 with an absurd Retry-After", "given up at once: says how long the server asks to wait"
)
@pytest.mark.parametrize(
    "value",
    ["61", "9" * 500, formatdate(time.time() + 86400 * 365, usegmt=True)],
    ids=["seconds", "many digits", "a year"],  # the same in every process that collects
)
def test_absurd_waits_are_not_waited_for(value: str, server: Server, store: Store) -> None:
    server.behaviours = [status(429, Retry_After=value)]
    assert "it asks to wait" in refused(server, store, client(), UnreachableError)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "value", ["", "soon", "-5", "1e9", "Wed, 99 Xxx 2099 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +2359"]
)
def test_odd_waits_are_ignored(value: str, server: Server, store: Store) -> None:
    server.behaviours = [status(503, Retry_After=value), ranged]
    fetch(server.url, store, client())


@pytest.mark.fault(
    "Network", "what answers does not speak HTTP", "given up after five tries; shows what came, made printable"
)
def test_what_is_not_http(server: Server, store: Store) -> None:
    server.behaviours = [raw(b"SSH-2.0-\x1b[31mOpenSSH\x07" + b"x" * 5000 + b"\r\n")]
    said = refused(server, store, client(), UnreachableError)
    assert "SSH-2.0" in said
    assert "\x1b" not in said
    assert "\x07" not in said
    assert len(said) < 600


@pytest.mark.fault("Network", "a Content-Length that is not the file's size", "refused at once: says both sizes")
@pytest.mark.parametrize("other", [len(DATA) - 1, len(DATA) + 1, 10])
def test_another_length_is_another_file(other: int, server: Server, store: Store, golden: Golden) -> None:
    server.behaviours = [raw(HEAD + f"Content-Length: {other}\r\n\r\n".encode() + DATA)]
    golden.check(refused(server, store, client()))
    assert len(server.requests) == 1


@pytest.mark.fault("Network", "an endless file", "refused after the first byte too much")
def test_an_endless_file(server: Server, store: Store, golden: Golden) -> None:
    server.behaviours = [raw(HEAD + b"\r\n" + DATA * 20)]
    golden.check(refused(server, store, client()))


@pytest.mark.fault("Network", "a chunked answer that ends early, or whose chunks are rubbish", "tried again; verified")
@pytest.mark.parametrize("body", [b"10\r\n" + DATA[:16] + b"\r\n", b"10\r\nabc", b"zz\r\nabc\r\n", b"fffffff\r\nabc"])
def test_bad_chunks(body: bytes, server: Server, store: Store) -> None:
    server.behaviours = [raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body), ranged]
    fetch(server.url, store, client())


@pytest.mark.fault("Network", "wrong bytes of the right size", "refused at once: says both hashes; nothing is kept")
def test_wrong_bytes(server: Server, store: Store) -> None:
    server.behaviours = [lambda handler: whole(handler, DATA[:-1] + b"?")]
    said = refused(server, store, client())
    assert SHA in said
    assert hashlib.sha256(DATA[:-1] + b"?").hexdigest() in said
    assert len(server.requests) == 1
    assert not list((store.root / "tmp").iterdir())


def lying_range(handler: BaseHTTPRequestHandler) -> None:
    whole(handler, bytes(len(DATA)), start=int(handler.headers["Range"][6:-1]))


@pytest.mark.fault("Network", "a resumed download gets wrong bytes (206)", "fetched whole once more; verified")
def test_wrong_bytes_behind_a_range(server: Server, store: Store) -> None:
    server.behaviours = [cut(500_000), lying_range, ranged]
    fetch(server.url, store, client())
    assert [headers.get("Range") for _, headers in server.requests] == [None, "bytes=500000-", None]


@pytest.mark.fault(
    "Network", "a range answered with 200, 416, another range or another file's", "fetched whole; verified"
)
@pytest.mark.parametrize(
    "answer",
    [
        whole,
        status(416),
        status(206, Content_Range=f"bytes 400000-{len(DATA) - 1}/{len(DATA)}"),
        status(206),
        status(206, Content_Range="rubbish"),
    ],
)
def test_a_range_answered_wrongly(answer: Behaviour, server: Server, store: Store) -> None:
    server.behaviours = [cut(500_000), answer, ranged]
    fetch(server.url, store, client())


def test_a_range_of_another_file_is_refused(server: Server, store: Store) -> None:
    server.behaviours = [cut(500_000), status(206, Content_Range="bytes 500000-599999/600000")]
    assert "got 600000 bytes" in refused(server, store, client())


def test_a_range_shorter_than_asked_is_gone_on_with(server: Server, store: Store) -> None:
    def some(handler: BaseHTTPRequestHandler) -> None:
        start = int(handler.headers["Range"][6:-1])
        stop = min(start + 300_000, len(DATA))
        handler.wfile.write(
            f"HTTP/1.0 206 Some\r\nContent-Range: bytes {start}-{stop - 1}/{len(DATA)}\r\n\r\n".encode()
        )
        handler.wfile.write(DATA[start:stop])

    server.behaviours = [cut(500_000), some]
    fetch(server.url, store, client())


@pytest.mark.fault(
    "Network", "a page's gzip is cut, is none, or has an encoding that was not requested", "tried again, then named"
)
@pytest.mark.parametrize(
    ("encoding", "body", "said"),
    [
        ("gzip", gzip.compress(b"page" * 1000, mtime=0)[:-20], "its gzip ends early"),
        ("gzip", b"page" * 1000, "it is not a gzip"),
        ("br", b"page", "which was not requested"),
    ],
)
def test_lies_about_the_encoding(encoding: str, body: bytes, said: str, server: Server) -> None:
    bad = raw(HEAD + f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    server.behaviours = [bad]
    with raises("fetch-unreachable") as caught:
        client().get(server.url)
    assert said in str(caught.value)
    good = gzip.compress(b"page")
    server.behaviours = [bad] * len(server.requests) + [
        bad, raw(HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(good)}\r\n\r\n".encode() + good),
    ]  # fmt: skip
    assert client().get(server.url) == b"page"


@pytest.mark.fault("Network", "an endless page, packed or not", "refused after 64 MiB")
@pytest.mark.parametrize("packed", [False, True])
def test_an_endless_page(packed: bool, server: Server) -> None:
    block = gzip.compress(bytes(200 << 20), 1) if packed else bytes(1 << 20)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(HEAD + (b"Content-Encoding: gzip\r\n\r\n" if packed else b"\r\n"))
        for _ in range(200):
            handler.wfile.write(block)

    server.behaviours = [endless]
    with raises("fetch-page-too-large"):
        client().get(server.url)


@pytest.mark.fault(
    "Network", "redirects in circles, to files, other schemes or nowhere", "refused: names both addresses"
)
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/file.whl", "redirects more than 8 times"),
        ("file:///etc/passwd", "redirects to what cannot be fetched"),
        ("ftp://127.0.0.1/x", "redirects to what cannot be fetched"),
        ("javascript:alert(1)", "redirects to what cannot be fetched"),
        ("http://[::1", "cannot be asked for"),
        ("http://127.0.0.1:99999/", "redirects to what cannot be fetched"),
    ],
)
def test_bad_redirects(target: str, said: str, server: Server, store: Store) -> None:
    server.behaviours = [status(302, Location=target)]
    assert said in refused(server, store, client())


def test_a_host_that_is_none_is_no_address(server: Server) -> None:
    server.behaviours = [status(302, Location="http://a..b/")]
    with pytest.raises(FetchError):
        client().get(server.url)


@pytest.mark.fault(
    "Secrets", "an index with credentials redirects to another host", "they do not follow, nor does netrc's entry"
)
def test_credentials_stay_with_their_origin(server: Server, store: Store, tmp_path: Path) -> None:
    other = Server()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login me password netrcsecret\n")
    netrc.chmod(0o600)
    try:
        other.behaviours = [ranged]
        server.behaviours = [status(302, Location=f"http://{other.host}/file.whl?signed=1")]
        port = server.host.rpartition(":")[2]
        fetch(f"http://localhost:{port}/file.whl", store, client(NETRC=str(netrc)))
        assert "Authorization" in server.requests[0][1]
        assert "Authorization" not in other.requests[0][1]
    finally:
        other.close()


@pytest.mark.fault("Network", "a named pipe or a device where a file should be", "rejected without waiting")
def test_what_is_no_file(tmp_path: Path, store: Store) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with raises("fetch-not-found"):
            fetch(path.as_uri(), store, client())


@pytest.mark.fault(
    "Network", "the CA bundle is missing, empty or rubbish", "said, with the file and the variables that name it"
)
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n"])
def test_a_bad_ca_bundle(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with raises("fetch-ca-bundle-unreadable") as caught:
        client(SSL_CERT_FILE=str(path)).get("https://127.0.0.1:1/")
    assert str(path) in str(caught.value)
    assert "SSL_CERT_FILE" in str(caught.value)


@pytest.mark.fault(
    "Network", "a TLS connection is cut in the handshake", "tried again; not mistaken for a bad certificate"
)
def test_a_cut_handshake_is_no_bad_certificate(server: Server) -> None:
    server.behaviours = [raw(b"")]
    with raises("fetch-unreachable") as caught:
        client().get(f"https://{server.host}/")
    assert "certificate" not in str(caught.value)


def test_a_stall_is_noticed_and_resumed(server: Server, store: Store) -> None:
    server.behaviours = [cut(400_000), stall, ranged]
    fetch(server.url, store, client())


@pytest.mark.fault(
    "Network", "a server's certificate is not trusted here", "said at once; names SSL_CERT_FILE, which helps"
)
@pytest.mark.parametrize("inspected", [False, True], ids=["direct", "through an inspecting proxy"])
def test_a_private_ca(inspected: bool, tmp_path: Path) -> None:
    ours, public = Authority(tmp_path / "ours", "Ours"), Authority(tmp_path / "public", "Public")
    (tmp_path / "page").write_bytes(b"page")
    upstream = SecureLoopback(partial(SimpleHTTPRequestHandler, directory=str(tmp_path)), public.context("localhost"))
    proxy = InspectingProxy(ours.context("localhost"), upstream.host, public.pem)
    url = f"https://localhost:{upstream.host.partition(':')[2]}/page"
    env = {"https_proxy": f"http://{proxy.host}"} if inspected else {}
    right, wrong = (ours, public) if inspected else (public, ours)
    try:
        assert client(**env, PIP_CERT=str(right.pem)).get(url) == b"page"
        with raises("fetch-untrusted-certificate") as caught:
            client(**env, REQUESTS_CA_BUNDLE=str(wrong.pem)).get(url)
    finally:
        proxy.close()
        upstream.close()
    assert "SSL_CERT_FILE" in str(caught.value)
    assert len(proxy.connects) == 2 * inspected


@pytest.mark.parametrize(("code", "words"), [(9, "is not valid yet"), (10, "is not valid any more")])
def test_a_certificate_out_of_its_time(code: int, words: str, tmp_path: Path) -> None:
    """The clock here may be wrong, so the message has its time. OpenSSL 3.0 makes no certificate that
    begins tomorrow.
    """
    said = ssl.SSLCertVerificationError(1, "certificate verify failed")
    said.verify_code = code
    if code == 10:
        authority = Authority(tmp_path / "ours", "Ours")
        upstream = SecureLoopback(SimpleHTTPRequestHandler, authority.context("localhost", days=-1))
        try:
            with pytest.raises(UnreachableError) as caught:
                client(PIP_CERT=str(authority.pem)).get(f"https://localhost:{upstream.host.partition(':')[2]}/page")
        finally:
            upstream.close()
        assert f"it {words}, if this machine's clock is right, which says" in str(caught.value)
    now = datetime.now(UTC)
    assert f"it {words}, if this machine's clock is right, which says {now:%Y-%m-%d}" in distrust(said)
