"""The client against servers that misbehave, on loopback."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, NotFoundError, UnreachableError
from imagegen.core.store import Store
from tests.support.errors import raises
from tests.support.http_server import DATA, Behaviour, Server, cut, ranged, raw, stall, status, whole
from tests.support.meter import Meter

SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def client(**env: str) -> Client:
    settings = Settings.from_environment({"HOME": "/nonexistent", **env})
    return Client(settings, attempts=3, timeout=(2.0, 0.5), backoff=0.01)


def fetch(url: str, store: Store, meter: Meter | None = None) -> str:
    return client().download(url, store, sha256=SHA, size=len(DATA), meter=meter or Meter())


def leftovers(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / "tmp").iterdir())


def test_download_keeps_the_verified_bytes(server: Server, store: Store) -> None:
    server.behaviours = [ranged]
    meter = Meter()
    assert store.read(fetch(server.url, store, meter)) == DATA
    assert meter.total == len(DATA)
    assert leftovers(store) == []


def test_download_sends_no_request_for_what_the_store_has(server: Server, store: Store) -> None:
    store.write(DATA)
    fetch(server.url, store)
    assert server.requests == []


def test_cut_connections_are_resumed_where_they_stopped(server: Server, store: Store) -> None:
    # More cuts than attempts: each one made headway, so none of them counts against the limit.
    server.behaviours = [cut(300_000), cut(300_000), cut(300_000), cut(300_000), ranged]
    meter = Meter()
    assert store.read(fetch(server.url, store, meter)) == DATA
    starts = [int(headers.get("Range", "bytes=0-")[6:-1]) for _, headers in server.requests]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert meter.total == len(DATA)


def test_a_killed_download_is_resumed_by_the_next_run(server: Server, store: Store) -> None:
    (store.root / "tmp" / f"part-{SHA}").write_bytes(DATA[:1000])
    server.behaviours = [ranged]
    assert store.read(fetch(server.url, store)) == DATA
    assert server.requests[0][1]["Range"] == "bytes=1000-"


@pytest.mark.parametrize("left", [b"rubbish", DATA[:-1] + b"!", b"x" * (len(DATA) + 1)])
def test_rubbish_of_an_earlier_run_costs_a_restart_only(server: Server, store: Store, left: bytes) -> None:
    (store.root / "tmp" / f"part-{SHA}").write_bytes(left)
    server.behaviours = [ranged]
    meter = Meter()
    assert store.read(fetch(server.url, store, meter)) == DATA
    assert meter.total == len(DATA)


def test_a_server_that_ignores_ranges_is_read_from_the_start(server: Server, store: Store) -> None:
    server.behaviours = [cut(500_000), whole]
    meter = Meter()
    assert store.read(fetch(server.url, store, meter)) == DATA
    assert meter.total == len(DATA)


@pytest.mark.parametrize("answer", [status(416), status(206, Content_Range="bytes 7-9/10")])
def test_a_wrong_range_is_not_trusted(server: Server, store: Store, answer: Behaviour) -> None:
    server.behaviours = [cut(500_000), answer, ranged]
    assert store.read(fetch(server.url, store)) == DATA


def test_wrong_bytes_are_refused_and_forgotten(server: Server, store: Store) -> None:
    server.behaviours = [lambda handler: whole(handler, b"!" + DATA[1:])]
    meter = Meter()
    with raises("fetch-digest-mismatch") as caught:
        fetch(server.url, store, meter)
    assert SHA in str(caught.value)
    assert not store.has(f"sha256:{SHA}")
    assert leftovers(store) == []
    assert meter.total == 0


def test_a_file_that_goes_on_and_on_is_refused(server: Server, store: Store) -> None:
    server.behaviours = [lambda handler: whole(handler, DATA + b"more")]
    with raises("fetch-digest-mismatch"):
        fetch(server.url, store)
    assert leftovers(store) == []


@pytest.mark.parametrize("code", [429, 500, 503])
def test_passing_faults_are_retried(server: Server, store: Store, code: int) -> None:
    server.behaviours = [status(code, Retry_After="0"), status(code), ranged]
    assert store.read(fetch(server.url, store)) == DATA


def test_lasting_faults_end_with_the_url_and_the_reason(server: Server) -> None:
    server.behaviours = [status(500)]
    with raises("fetch-unreachable"):
        client().get(server.url)
    assert len(server.requests) == 3


def test_a_stalled_answer_is_given_up(server: Server, store: Store) -> None:
    server.behaviours = [stall, ranged]
    assert store.read(fetch(server.url, store)) == DATA


def test_missing_files_are_not_asked_for_twice(server: Server) -> None:
    server.behaviours = [status(404)]
    with raises("fetch-not-found"):
        client().get(server.url)
    assert len(server.requests) == 1


def test_a_refused_connection_is_reported(store: Store) -> None:
    with raises("fetch-unreachable"):
        fetch("http://127.0.0.1:1/file.whl", store)


def test_redirects_end(server: Server) -> None:
    server.behaviours = [status(302, Location="/again")]
    with raises("fetch-too-many-redirects"):
        client().get(server.url)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirects_to_other_schemes_are_refused(server: Server, target: str) -> None:
    server.behaviours = [status(302, Location=target)]
    with raises("fetch-redirect-refused"):
        client().get(server.url)


def test_page_has_the_address_after_redirects(server: Server) -> None:
    server.behaviours = [status(301, Location="/other/"), lambda handler: whole(handler, b"page")]
    page = client().page(server.url)
    assert (page.url, page.body) == (f"http://{server.host}/other/", b"page")


def test_size_comes_from_the_headers(server: Server) -> None:
    server.behaviours = [status(200)]
    assert client().size(server.url) == 0
    assert client().size(Path(__file__).as_uri()) == Path(__file__).stat().st_size


def test_credentials_are_sent_and_never_shown(server: Server) -> None:
    server.behaviours = [status(401)]
    with pytest.raises(FetchError) as caught:
        client().get(f"http://me:s%40cret@{server.host}/simple/")
    sent = base64.b64decode(server.requests[0][1]["Authorization"].removeprefix("Basic "))
    assert sent == b"me:s@cret"
    assert "cret" not in str(caught.value)


def test_credentials_do_not_follow_to_another_host(server: Server) -> None:
    other = Server()
    try:
        other.behaviours = [lambda handler: whole(handler, b"page")]
        server.behaviours = [status(302, Location=f"http://{other.host}/")]
        assert client().get(f"http://me:secret@{server.host}/") == b"page"
        assert "Authorization" not in other.requests[0][1]
    finally:
        other.close()


def test_an_indexs_credentials_hold_for_the_files_that_it_links_to(server: Server) -> None:
    server.behaviours = [lambda handler: whole(handler, b"page")]
    client(PIP_INDEX_URL=f"http://me:secret@{server.host}/simple").get(f"http://{server.host}/files/x.whl")
    assert server.requests[0][1]["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()


def test_netrc_is_read(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login me password secret\n")
    file.chmod(0o600)
    server.behaviours = [lambda handler: whole(handler, b"page")]
    client(NETRC=str(file)).get(server.url)
    assert server.requests[0][1]["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()


def test_a_malformed_netrc_is_named(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    file.write_text("nonsense\n")
    with raises("fetch-netrc-unreadable"):
        client(NETRC=str(file)).get(server.url)


def test_proxies_are_used_unless_excepted(server: Server) -> None:
    server.behaviours = [lambda handler: whole(handler, b"from the proxy")]
    proxied = client(http_proxy=f"http://{server.host}")
    assert proxied.get("http://elsewhere.invalid/x") == b"from the proxy"
    assert server.requests[0][0] == "http://elsewhere.invalid/x"
    excepted = client(http_proxy=f"http://{server.host}", no_proxy="localhost, .invalid")
    with pytest.raises(UnreachableError):
        excepted.get("http://elsewhere.invalid/x")


def test_file_urls(tmp_path: Path, store: Store) -> None:
    (tmp_path / "a b+c.whl").write_bytes(DATA)
    (tmp_path / "index.html").write_bytes(b"<html>")
    assert store.read(fetch((tmp_path / "a b+c.whl").as_uri(), store)) == DATA
    assert client().get(tmp_path.as_uri()) == b"<html>"
    with pytest.raises(NotFoundError):
        client().get((tmp_path / "none").as_uri())
    with raises("fetch-page-too-large"):
        client().page(tmp_path.as_uri(), limit=5)
    with raises("fetch-host-not-allowed"):
        client().get("file://elsewhere/x")


def test_a_short_local_file_is_refused_at_once(tmp_path: Path, store: Store) -> None:
    (tmp_path / "short").write_bytes(DATA[:10])
    with raises("fetch-digest-mismatch"):
        fetch((tmp_path / "short").as_uri(), store)


def test_many_at_once_fetch_one_file_once(server: Server, store: Store) -> None:
    server.behaviours = [ranged]
    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(lambda _: fetch(server.url, store), range(16)))
    assert set(digests) == {f"sha256:{SHA}"}
    assert store.read(digests[0]) == DATA
    assert len(server.requests) == 1


def test_close_stops_a_retry(server: Server) -> None:
    server.behaviours = [status(503, Retry_After="50")]
    stopped = client()
    threading.Timer(0.1, stopped.close).start()
    with raises("fetch-stopped"):
        stopped.get(server.url)


def pieced(handler: BaseHTTPRequestHandler) -> None:
    start, end = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
    part = DATA[start : end + 1]
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(DATA)}")
    handler.send_header("Content-Length", str(len(part)))
    handler.end_headers()
    handler.wfile.write(part)


def test_a_piece_is_what_was_asked_for(server: Server, tmp_path: Path) -> None:
    server.behaviours = [status(503), pieced]
    assert client().piece(server.url, 1000, 300) == DATA[1000:1300]
    (tmp_path / "file").write_bytes(DATA)
    assert client().piece((tmp_path / "file").as_uri(), len(DATA) - 5, 5) == DATA[-5:]


@pytest.mark.parametrize("behaviour", [whole, partial(whole, start=7), raw(b"HTTP/1.0 206 OK\r\n\r\nxx")])
def test_another_piece_is_refused(server: Server, behaviour: Behaviour) -> None:
    server.behaviours = [behaviour]
    with raises("fetch-no-ranges"):
        client().piece(server.url, 1000, 300)


def test_a_piece_beyond_the_end_is_an_error(server: Server, tmp_path: Path) -> None:
    server.behaviours = [pieced]
    (tmp_path / "file").write_bytes(DATA)
    for url in (server.url, (tmp_path / "file").as_uri()):
        with raises("fetch-digest-mismatch"):
            client().piece(url, len(DATA) - 100, 300)


def test_a_limit_of_this_machine_is_no_fault_of_a_host(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    server.behaviours = [whole]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        with raises("store-unusable") as caught:
            fetch(server.url, store)
    assert "ulimit -n" in str(caught.value)
    assert store.read(fetch(server.url, store)) == DATA


def a_file_does_not_fit(store: Store) -> None:
    with raises("store-disk-full"), store.explained():
        raise OSError(errno.ENOSPC, "another file does not fit")


def a_program_finds_the_disk_full(store: Store) -> None:
    with raises("store-disk-full"):
        store.blame_disk(f"tar: x: {os.strerror(errno.ENOSPC)}")


@pytest.mark.parametrize("fill", [a_file_does_not_fit, a_program_finds_the_disk_full, None])
def test_a_stopped_download_leaves_its_part_unless_the_disk_is_full(
    server: Server, store: Store, fill: Callable[[Store], None] | None
) -> None:
    class Stopping(Meter):
        def advance(self, amount: int) -> None:
            if amount and fill:
                fill(store)
            if amount:
                stopped.close()

    server.behaviours = [cut(300_000), ranged]
    stopped = client()
    with raises("fetch-stopped"):
        stopped.download(server.url, store, sha256=SHA, size=len(DATA), meter=Stopping())
    assert leftovers(store) == ([] if fill else [f"part-{SHA}"])
