"""Writing to a registry: the stand-in of registry_server_writes.py, willing and not, whole and broken off."""

from __future__ import annotations

import base64
import email.utils
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.config import Settings
from imagegen.core.errors import PublishError, StoreError
from imagegen.core.net import Client
from imagegen.core.net.sender import Reply, Sender
from imagegen.core.store import Store
from imagegen.oci.documents import Descriptor, digest_of
from imagegen.oci.registry import BlobTotals, PushTarget, PushTotals, Repository, parse, upload
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.http_server import DATA
from tests.support.meter import Meter
from tests.support.registry_server import LAYER, MANIFEST, StandIn, basic
from tests.support.registry_server_writes import Writable, answering, dropping, error, every, received

PIECE = 300_000  # bytes; DATA has 1 280 000
DIGEST = digest_of(DATA)
BLOB = Descriptor(LAYER, DIGEST, len(DATA))
PLACE = f"/v2/a/b/blobs/{DIGEST}"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writable]:
    monkeypatch.setattr(upload, "PIECE_BYTES", PIECE)
    server = Writable()
    yield server
    server.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    store.write(DATA)
    return store


def target(registry: StandIn, name: str = "a/b", mount: str | None = None, **env: str) -> PushTarget:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull, **env})
    client = Client(settings, attempts=3, timeout=(2.0, 2.0), backoff=0.01)
    source = parse(f"{registry.host}/{mount}") if mount else None
    return PushTarget(parse(f"{registry.host}/{name}"), client, settings, mounts=[source] if source else [])


def login(home: Path, host: str, user: str = "me:secret") -> dict[str, str]:
    config = {"auths": {host: {"auth": base64.b64encode(user.encode()).decode()}}}
    (home / "config.json").write_text(json.dumps(config))
    return {"DOCKER_CONFIG": str(home)}


def push(registry: Writable, store: Store, **env: str) -> Meter:
    """The blob, seen to arrive whole and counted once."""
    meter = Meter()
    assert target(registry, **env).upload(BLOB, store, meter) == "sent"
    assert registry.documents[PLACE][1] == DATA
    assert meter.total == len(DATA)
    return meter


def methods(registry: Writable) -> list[str]:
    return [method for method, path in registry.requested if "/token" not in path]


def refused(registry: Writable, store: Store, **env: str) -> str:
    with pytest.raises(PublishError) as caught:
        target(registry, **env).upload(BLOB, store, Meter())
    assert PLACE not in registry.documents
    assert "secret" not in str(caught.value) and "s3cret" not in str(caught.value)
    assert f"{registry.host}/a/b" in str(caught.value)
    return str(caught.value)


def test_a_large_blob_goes_in_pieces_and_a_small_one_at_once(registry: Writable, store: Store) -> None:
    push(registry, store)
    assert methods(registry) == ["HEAD", "POST", *["PATCH"] * (len(DATA) // PIECE), "PUT"]
    registry.requested.clear()
    for data in (b"small", b""):
        small = Descriptor(LAYER, store.write(data), len(data))
        assert target(registry).upload(small, store, Meter()) == "sent"
        assert registry.documents[f"/v2/a/b/blobs/{small.digest}"][1] == data
    assert methods(registry) == ["HEAD", "POST", "PUT"] * 2


def test_what_is_there_is_not_sent_again(registry: Writable, store: Store) -> None:
    push(registry, store)
    registry.requested.clear()
    meter = Meter()
    assert target(registry).upload(BLOB, store, meter) == "there"
    assert methods(registry) == ["HEAD"]
    assert meter.total == len(DATA)


def test_a_manifest_comes_last_and_can_be_read_again(registry: Writable, store: Store) -> None:
    config = Descriptor("application/vnd.oci.empty.v1+json", store.write(b"{}"), 2)
    blobs = [{"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size} for blob in (config, BLOB)]
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": blobs[0], "layers": blobs[1:]}).encode()
    here = target(registry)
    with raises("publish-write-failed"):
        here.put(manifest, MANIFEST, "1")
    assert here.manifest("1") is None
    assert here.upload_all([config, BLOB, BLOB], store, Meter()).sent == BlobTotals(2, len(DATA) + 2)
    assert here.put(manifest, MANIFEST, "1") == here.manifest("1") == digest_of(manifest)
    reference = parse(f"{registry.host}/a/b:1")
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    assert Repository(reference, Client(settings), settings).manifest("1") == (
        digest_of(manifest), manifest, MANIFEST,
    )  # fmt: skip


def test_a_blob_of_another_repository_is_linked(registry: Writable, store: Store) -> None:
    registry.blob("people/base", DATA, LAYER)
    meter = Meter()
    assert target(registry, mount="people/base").upload(BLOB, store, meter) == "mounted"
    assert meter.total == len(DATA)
    assert methods(registry) == ["HEAD", "HEAD", "POST"]
    assert PLACE in registry.documents


@pytest.mark.parametrize("how", ["sends all the same", "has none", "denies", "does not know mounts"])
def test_a_mount_that_is_refused_costs_nothing_but_the_upload(how: str, registry: Writable, store: Store) -> None:
    registry.blob("people/base", DATA, LAYER)
    registry.mounts = False
    if how == "has none":
        registry.mounts = True
        registry.documents.clear()
    status = {"denies": 403, "does not know mounts": 400}.get(how)
    if status:
        fault = answering(status, "POST")
        registry.faults.append(lambda handler: "mount=" in handler.path and fault(handler))
        registry.token = "t0ken"
    assert target(registry, mount="people/base").upload(BLOB, store, Meter()) == "sent"
    assert registry.documents[PLACE][1] == DATA


def test_tokens_are_asked_for_with_what_is_wanted(registry: Writable, store: Store, tmp_path: Path) -> None:
    registry.token, registry.user = "t0ken", "me:secret"
    login(tmp_path, registry.host)
    target(registry, mount="people/base", DOCKER_CONFIG=str(tmp_path)).upload(BLOB, store, Meter())
    assert registry.scopes == [["repository:a/b:pull,push", "repository:people/base:pull"]]
    assert basic("me:secret") not in {sent for path, sent in registry.requests if "/token" not in path}


@pytest.mark.fault("Network", "a token ends in the middle of a push", "a new one is fetched, and the upload goes on")
@pytest.mark.parametrize(("lives", "polite"), [(2, True), (3, True), (4, True), (3, False), (4, False)])
def test_tokens_that_end_early(lives: int, registry: Writable, store: Store, *, polite: bool) -> None:
    registry.token, registry.lives, registry.polite = "t0ken", lives, polite
    push(registry, store)
    assert len(registry.scopes) > 1


@pytest.mark.fault(
    "Network", "a registry is busy, fails every third request, or asks to wait", "tried again, with what it asks for"
)
@pytest.mark.parametrize(("method", "status"), [("HEAD", 503), ("POST", 500), ("PATCH", 429), ("PUT", 502)])
def test_answers_that_pass(method: str, status: int, registry: Writable, store: Store) -> None:
    registry.faults.append(answering(status, method, times=2, Retry_After="0"))
    push(registry, store)


@pytest.mark.parametrize("nth", [3, 4])
def test_a_registry_that_fails_now_and_then(nth: int, registry: Writable, store: Store) -> None:
    registry.faults.append(every(nth, 500))
    push(registry, store)


def test_a_registry_that_asks_for_an_hour_gets_none(registry: Writable, store: Store, golden: Golden) -> None:
    registry.faults.append(answering(429, "POST", Retry_After="3600"))
    golden.check(refused(registry, store))


@pytest.mark.fault(
    "Network", "a push breaks off in the middle of a blob",
    "it goes on where the registry says; anew where the registry kept nothing; nothing wrong is ever completed",
)  # fmt: skip
@pytest.mark.parametrize("keeps", ["all", "none", "gone"])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_what_broke_off_goes_on(keeps: str, method: str, registry: Writable, store: Store) -> None:
    registry.keeps = keeps
    registry.faults.append(dropping(1000, method, times=2))
    push(registry, store)
    begun = methods(registry).count("POST")
    assert begun == (3 if keeps == "gone" else 1)


@pytest.mark.fault(
    "Network",
    "a registry stalls in the middle of an upload",
    "after the time limit the upload goes on where it stopped",
)
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_registry_that_stalls_in_an_upload(
    method: str, registry: Writable, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    stalled: list[str] = []

    def stall(handler: BaseHTTPRequestHandler) -> bool:
        if stalled or handler.command != method:
            return False
        stalled.append(handler.path)
        handler.rfile.read(1000)
        over.wait(10)
        handler.close_connection = True
        return True

    registry.faults.append(stall)
    monkeypatch.setattr("imagegen.oci.registry.push.Sender", partial(Sender, silence=0.5))
    pushing = target(registry)
    try:
        assert pushing.upload(BLOB, store, Meter()) == "sent"
    finally:
        over.set()
    assert stalled and registry.documents[PLACE][1] == DATA
    assert [method for method, _ in registry.requested].count("POST") == 1


def test_little_is_sent_twice(registry: Writable, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE_BYTES", len(DATA) + 1)
    registry.faults.append(dropping(len(DATA) - 1000, "PUT"))
    sent = []
    registry.faults.append(lambda handler: bool(sent.append(int(handler.headers.get("Content-Length", "0")))))  # type: ignore[func-returns-value]
    push(registry, store)
    assert [size for size in sent if size] == [len(DATA), 1000]


def test_a_registry_that_drops_every_try_is_given_up(registry: Writable, store: Store, golden: Golden) -> None:
    registry.faults.append(dropping(1000, "PATCH", times=1 << 30))
    golden.check(refused(registry, store))


def later(handler: BaseHTTPRequestHandler) -> bool:
    """Return whether it is a piece after the first."""
    return handler.command == "PATCH" and not handler.headers["Content-Range"].startswith("0-")


def test_a_registry_that_forgets_every_try_is_given_up(registry: Writable, store: Store, golden: Golden) -> None:
    """Between two losses there is a piece that arrives, so no try after another fails."""

    def forget(handler: BaseHTTPRequestHandler) -> bool:
        if not later(handler):
            return False
        handler.rfile.read(1000)
        registry.uploads.clear()
        return True

    registry.faults.append(forget)
    golden.check(refused(registry, store))


def test_an_answer_that_is_lost_is_asked_for(registry: Writable, store: Store) -> None:
    """The upload was completed, and the answer was lost."""
    registry._created = lambda handler, place, digest: None  # type: ignore[method-assign]
    push(registry, store)
    assert methods(registry).count("PUT") == 1
    assert methods(registry)[-2:] == ["GET", "HEAD"]


def test_a_registry_that_takes_blobs_whole(registry: Writable, store: Store) -> None:
    registry.chunked = False
    push(registry, store)
    assert methods(registry) == ["HEAD", "POST", "PATCH", "POST", "PUT"]


def test_a_registry_that_takes_no_second_piece(registry: Writable, store: Store) -> None:
    fault = answering(416, "PATCH")
    registry.faults.append(lambda handler: later(handler) and fault(handler))
    push(registry, store)


def test_a_registry_may_want_larger_pieces(registry: Writable, store: Store) -> None:
    registry.minimum = 500_000
    push(registry, store)
    assert methods(registry).count("PATCH") == 2


@pytest.mark.fault(
    "Network",
    "a registry is read-only, unknown, full, or refuses the credentials",
    "refused with its own words, exit 79",
)
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (405, "UNSUPPORTED", "HTTP status 405, UNSUPPORTED: it is read-only"),
        (403, "DENIED", "may not be written to"),
        (401, "UNAUTHORIZED", "may not be written to"),
        (404, "NAME_UNKNOWN", "no such repository"),
        (413, "SIZE_INVALID", "takes nothing of this size"),
        (400, "NAME_INVALID", "HTTP status 400, NAME_INVALID"),
        (507, "TOOMANYREQUESTS", "HTTP status 507"),
    ],
)
def test_refusals(status: int, code: str, words: str, registry: Writable, store: Store) -> None:
    registry.faults.append(answering(status, "POST", body=error(code)))
    assert words in refused(registry, store)
    assert PublishError.exit_code == 79


def test_credentials_that_are_wrong(registry: Writable, store: Store, tmp_path: Path, golden: Golden) -> None:
    registry.token, registry.user = "t0ken", "me:right"
    said = refused(registry, store, **login(tmp_path, registry.host))
    assert f"`docker login {registry.host}`" in said
    registry.basic = True
    golden.check(refused(registry, store))


def test_a_registry_without_a_server(store: Store) -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    here = PushTarget(parse("127.0.0.1:1/a/b"), Client(settings, attempts=1), settings)
    with raises("publish-write-failed"):
        here.reach()
    with raises("publish-write-failed"):
        here.upload(BLOB, store, Meter())


@pytest.mark.fault("Network", "a registry says that it keeps other bytes than were sent", "the push fails and says so")
@pytest.mark.parametrize("what", ["blob", "manifest"])
def test_a_digest_that_is_not_ours(what: str, registry: Writable, store: Store, golden: Golden) -> None:
    registry.faults.append(answering(201, "PUT", Docker_Content_Digest="sha256:" + "0" * 64))
    here = target(registry)
    with pytest.raises(PublishError) as caught:
        here.upload(BLOB, store, Meter()) if what == "blob" else here.put(b"{}", MANIFEST, "1")
    golden.check(caught.value)


def test_a_digest_that_the_registry_finds_wrong(registry: Writable, store: Store) -> None:
    registry.faults.append(answering(400, "PUT", body=error("DIGEST_INVALID", "other bytes")))
    assert r"DIGEST_INVALID (other bytes)" in refused(registry, store)
    assert methods(registry).count("POST") == 2


def test_a_manifest_that_no_registry_takes(registry: Writable) -> None:
    with raises("publish-write-failed"):
        target(registry).put(b" " * (1 << 23), MANIFEST)
    assert not registry.requested


@pytest.mark.fault(
    "Killed and damaged", "a blob is damaged when it is pushed", "it never becomes whole in the registry; it is named"
)
@pytest.mark.parametrize("piece", [PIECE, 1 << 23])
@pytest.mark.parametrize("cut", [True, False])
def test_damage_is_not_pushed(
    piece: int, registry: Writable, store: Store, monkeypatch: pytest.MonkeyPatch, *, cut: bool
) -> None:
    monkeypatch.setattr(upload, "PIECE_BYTES", piece)
    path = store.path(DIGEST)
    path.chmod(0o644)
    if cut:
        with path.open("r+b") as file:
            file.truncate(1000)
    else:
        path.write_bytes(b"?" + DATA[1:])
    with pytest.raises(StoreError):
        target(registry).upload(BLOB, store, Meter())
    assert PLACE not in registry.documents


@pytest.mark.fault("Secrets", "a registry sends uploads to another host", "the blob goes there, and no credentials do")
def test_uploads_that_go_elsewhere(registry: Writable, store: Store, tmp_path: Path) -> None:
    other = Writable()
    try:
        registry.token, registry.user = "t0ken", "me:secret"
        other.uploads["7"] = b""

        def begun(handler: BaseHTTPRequestHandler) -> bool:
            if handler.command != "POST" or not handler.headers.get("Authorization"):
                return False
            answer = answering(202, "POST", Location=f"http://{other.host}/v2/a/b/blobs/uploads/7")
            return answer(handler)

        registry.faults.append(begun)
        target(registry, **login(tmp_path, registry.host)).upload(BLOB, store, Meter())
        assert other.documents[PLACE][1] == DATA
        seen: list[str | None] = []
        other.faults.append(lambda handler: seen.append(handler.headers.get("Authorization")))  # type: ignore[func-returns-value, arg-type]
        other.uploads["7"] = b""
        target(registry, **login(tmp_path, registry.host)).upload(BLOB, store, Meter())
        assert set(seen) == {None}
    finally:
        other.close()


def test_a_file_store_that_may_not_be_asked_whether_it_has_a_blob(registry: Writable, store: Store) -> None:
    other = Writable()
    try:
        registry.elsewhere, other.token = other.host, "t0ken"
        push(registry, store)
    finally:
        other.close()


@pytest.mark.parametrize("status", [307, 308])
def test_a_body_is_repeated_where_a_redirect_says_so(status: int, registry: Writable, store: Store) -> None:
    def moved(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command != "PUT" or "again" in handler.path:
            return False
        return answering(status, "PUT", Location=handler.path + "&again=1")(handler)

    registry.faults.append(moved)
    push(registry, store)


def test_a_redirect_that_would_drop_the_body_is_refused(registry: Writable, store: Store, golden: Golden) -> None:
    registry.faults.append(answering(302, "PUT", Location="/elsewhere"))
    golden.check(refused(registry, store))


def test_a_registry_elsewhere_sends_no_upload_to_this_machine(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    sender = Sender(Client(settings))
    upload_ = upload.Upload(BLOB, store, sender, "https://ghcr.io/v2/a/b/blobs", None, Meter())
    reply = Reply("https://ghcr.io/v2/a/b/blobs/uploads/", 202, {"Location": "https://127.0.0.1/x"}, b"")
    monkeypatch.setattr(sender, "once", lambda *_, **__: reply)
    with raises("fetch-host-not-allowed"):
        upload_.advance(None)


def test_uploads_stop_when_the_run_does(registry: Writable, store: Store) -> None:
    """The first error ends the other uploads."""
    other = Descriptor(LAYER, store.write(DATA[1:]), len(DATA) - 1)
    waiting = threading.Event()

    def fault(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "PATCH":
            waiting.wait(5)
        if handler.command == "HEAD" and other.digest in handler.path:
            waiting.set()
            return answering(405, "HEAD")(handler)
        return False

    registry.faults.append(fault)
    with pytest.raises(PublishError):
        target(registry).upload_all([BLOB, other], store, Meter())
    assert PLACE not in registry.documents


@given(st.one_of(st.text(max_size=30), st.from_regex(r"(bytes=)?[0-9]{1,9}-[0-9]{0,12}", fullmatch=True)))
def test_whatever_a_registry_says_of_an_upload(header: str) -> None:
    """It is a number of bytes that leads to the same words, or nothing."""
    came = upload.arrived(header)
    if came is None:
        assert not re.fullmatch(r"0-[0-9]{1,12}", header)
    else:
        assert came != 1
        assert int(header.strip().rpartition("-")[2]) == max(0, came - 1)


def test_of_several_repositories_one_has_the_blob(registry: Writable, store: Store) -> None:
    """Each is asked once, and the one that had the last blob is asked first for the next."""
    registry.blob("people/base", DATA, LAYER)
    other = Descriptor(LAYER, store.write(DATA[1:]), len(DATA) - 1)
    registry.blob("people/base", DATA[1:], LAYER)
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    names = [
        f"{registry.host}/people/none",
        "ghcr.io/people/base",
        f"{registry.host}/people/base",
        f"{registry.host}/a/b",
    ]
    client = Client(settings, attempts=3, timeout=(2.0, 2.0), backoff=0.01)
    here = PushTarget(parse(f"{registry.host}/a/b"), client, settings, mounts=[parse(name) for name in names])
    assert [here.upload(blob, store, Meter()) for blob in (BLOB, other)] == ["mounted", "mounted"]
    assert [path.split("/")[2:4] for method, path in registry.requested if method == "HEAD"] == [
        ["a", "b"], ["people", "none"], ["people", "base"], ["a", "b"], ["people", "base"],
    ]  # fmt: skip
    assert methods(registry).count("POST") == 2


@pytest.mark.fault(
    "Network", "a registry refuses to link blobs between repositories", "they are sent; it is asked once"
)
@pytest.mark.parametrize("status", [202, 400, 403])
def test_a_registry_that_mounts_nothing_is_asked_once(status: int, registry: Writable, store: Store) -> None:
    registry.mounts = False
    if status != 202:
        fault = answering(status, "POST")
        registry.faults.append(lambda handler: "mount=" in handler.path and fault(handler))
    blobs = [Descriptor(LAYER, store.write(DATA[n:]), len(DATA) - n) for n in range(3)]
    for n in range(3):
        registry.blob("people/base", DATA[n:], LAYER)
    here = target(registry, mount="people/base")
    assert [here.upload(blob, store, Meter()) for blob in blobs] == ["sent"] * 3
    assert sum("mount=" in path for _, path in registry.requested) == 1
    assert sum("people/base/blobs" in path for _, path in registry.requested) == 1


def test_a_repository_that_may_not_be_read_is_asked_no_more(registry: Writable, store: Store, tmp_path: Path) -> None:
    """Neither for blobs nor for the token, which is refused for the others' sake."""
    registry.token, registry.user = "t0ken", "me:secret"
    fault = answering(403, "HEAD", "GET")

    def denied(handler: BaseHTTPRequestHandler) -> bool:
        if "/token" in handler.path and "people" in handler.path:
            registry.scopes.append(["refused"])
            handler.send_response(403)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return True
        return "people/base" in handler.path and "/blobs/sha256" in handler.path and fault(handler)

    registry.faults.append(denied)
    here = target(registry, mount="people/base", **login(tmp_path, registry.host))
    other = Descriptor(LAYER, store.write(b"small"), 5)
    assert [here.upload(blob, store, Meter()) for blob in (BLOB, other)] == ["sent", "sent"]
    assert registry.scopes[:2] == [["refused"], ["repository:a/b:pull,push"]]
    assert len({path for _, path in registry.requested if "people/base/blobs" in path}) == 1
    assert not any("mount=" in path for _, path in registry.requested)


def test_what_became_of_blobs(registry: Writable, store: Store, golden: Golden) -> None:
    there, linked, mine = (Descriptor(LAYER, store.write(data), len(data)) for data in (b"there", b"linked", DATA))
    registry.blob("a/b", b"there", LAYER)
    registry.blob("people/base", b"linked", LAYER)
    here = target(registry, mount="people/base")
    assert here.present([there, linked, mine]) == {there.digest}
    moved = here.upload_all([there, linked, mine, mine], store, Meter())
    assert moved == PushTotals(BlobTotals(1, 5), BlobTotals(1, 6), BlobTotals(1, len(DATA)))
    golden.check(str(moved))


def test_a_tag_that_is_too_long(registry: Writable) -> None:
    with raises("publish-write-failed"):
        target(registry).put(b"{}", MANIFEST, "x" * 129)
    with raises("publish-write-failed"):
        target(registry).put(b"{}", MANIFEST, "a+b")
    assert not registry.requested


@pytest.mark.fault(
    "Network",
    "the clock of this machine is wrong",
    "a refusal says by how much; a certificate's dates are reported too",
)
@pytest.mark.parametrize(
    ("ahead", "words"),
    [(3 * 3600, "this machine's clock is 3 hours ahead of theirs"), (-130, "clock is 2 minutes behind theirs")],
)
def test_a_clock_that_is_wrong(ahead: int, words: str, registry: Writable, store: Store, golden: Golden) -> None:
    there = email.utils.formatdate(time.time() - ahead, usegmt=True)

    def refuse(handler: BaseHTTPRequestHandler) -> bool:
        received(handler)
        handler.send_response_only(401)
        for name, value in (("Date", there), ("WWW-Authenticate", 'Bearer realm="x",error="invalid_token"')):
            handler.send_header(
                name, value if name == "Date" else value.replace('"x"', f'"http://{registry.host}/token"')
            )
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    registry.token = "t0ken"
    registry.faults.append(lambda handler: "/token" not in handler.path and refuse(handler))
    said = refused(registry, store)
    assert words in said
    golden.check(said)


def test_who_is_refused_and_why(registry: Writable, store: Store, tmp_path: Path, golden: Golden) -> None:
    registry.token, registry.user = "t0ken", "me:right"
    golden.check(refused(registry, store))
    said = refused(registry, store, **login(tmp_path, registry.host))
    golden.check(said)


def test_a_registry_that_does_not_exist() -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    for name, said in (
        ("registry.invalid", "no host of that name is known here"),
        ("127.0.0.1:1", "no server listens there"),
    ):
        with pytest.raises(PublishError, match=said):
            PushTarget(parse(f"{name}/a/b"), Client(settings, attempts=1), settings).reach()
