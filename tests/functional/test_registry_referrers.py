"""Artifacts that refer to an image, over the stand-in of registry_server_writes.py, with and without referrers API.

The real registry, which has none, is in tests/integration/test_registry_referrers.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client
from imagegen.oci.documents import Descriptor, digest_of
from imagegen.oci.registry import Content, PushTarget, Referrer, Repository, parse, upload
from imagegen.oci.registry import repository as registry_repository
from imagegen.oci.registry.referrers import extended, fallback_tag, listed, referring
from imagegen.oci.registry.repository import next_page
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.http_server import DATA
from tests.support.registry_server import INDEX, MANIFEST, send
from tests.support.registry_server_writes import Writable, answering, dropping, every, received

SUBJECT = Descriptor(MANIFEST, digest_of(b"an image's manifest"), 19)
SBOM, NOTE = "application/vnd.cyclonedx+json", "text/plain"
TAG = fallback_tag(SUBJECT.digest)


@pytest.fixture
def registry() -> Iterator[Writable]:
    server = Writable()
    yield server
    server.close()


@pytest.fixture(params=[True, False], ids=["with the API", "without the API"])
def either(request: pytest.FixtureRequest, registry: Writable) -> Writable:
    registry.referrers = request.param
    return registry


def both(registry: Writable) -> tuple[PushTarget, Repository]:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    client = Client(settings, attempts=3, timeout=(2.0, 2.0), backoff=0.01)
    name = parse(f"{registry.host}/a/b")
    return PushTarget(name, client, settings), Repository(name, client, settings)


def index_of(registry: Writable) -> list[str]:
    """The digests in the list that clients keep."""
    _, data = registry.documents[f"/v2/a/b/manifests/{TAG}"]
    return [entry["digest"] for entry in json.loads(data)["manifests"]]


def test_what_is_attached_is_found_and_read(either: Writable) -> None:
    target, repository = both(either)
    assert repository.referrers(SUBJECT.digest) == ()
    sbom = target.attach(SUBJECT, SBOM, b'{"bomFormat": "CycloneDX"}', SBOM, {"a.b": "c"})
    note = target.attach(SUBJECT, NOTE, b"well done", NOTE, {})
    found = repository.referrers(SUBJECT.digest)
    assert {each.digest for each in found} == {sbom, note}
    (one,) = repository.referrers(SUBJECT.digest, SBOM)
    assert one == Referrer(sbom, one.size, SBOM, {"a.b": "c"}, SUBJECT.digest)
    assert repository.content(one) == Content(SBOM, {"a.b": "c"}, SBOM, b'{"bomFormat": "CycloneDX"}')
    assert repository.referrers(digest_of(b"another")) == ()
    assert (f"/v2/a/b/manifests/{TAG}" in either.documents) != either.referrers


def test_of_many_documents_those_are_sent_that_are_not_there(either: Writable) -> None:
    target, repository = both(either)
    many = {f"{number}": b"%d" % (number // 2) for number in range(40)}  # two by two the same
    first = target.attach_all(SUBJECT, NOTE, many, NOTE, {})
    either.requested.clear()
    second = target.attach_all(SUBJECT, NOTE, many | {"40": b"new"}, NOTE, {})
    assert len([path for method, path in either.requested if method == "PUT" and "/uploads/" in path]) == 1
    found = {each.digest: repository.artifact(each) for each in repository.referrers(SUBJECT.digest)}
    assert found.keys() == {first, second}
    assert {title: blob.digest for title, blob in found[first].parts} == {
        title: digest_of(data) for title, data in many.items()
    }
    assert [title for title, _ in found[second].parts] == [*many, "40"]
    (one, _) = repository.referrers(SUBJECT.digest)
    with raises("fetch-artifact-invalid"):
        repository.content(one)


def test_the_same_again_is_the_same(either: Writable) -> None:
    target, repository = both(either)
    first = target.attach(SUBJECT, SBOM, b"{}", SBOM, {"a": "b"})
    documents = dict(either.documents)
    assert both(either)[0].attach(SUBJECT, SBOM, b"{}", SBOM, {"a": "b"}) == first
    assert either.documents == documents
    assert len(repository.referrers(SUBJECT.digest)) == 1


@pytest.mark.parametrize("filters", [True, False])
def test_long_lists_come_in_pages_filtered_or_not(registry: Writable, *, filters: bool) -> None:
    registry.referrers, registry.filters, registry.page = True, filters, 2
    target, repository = both(registry)
    digests = [target.attach(SUBJECT, kind, str(n).encode(), kind, {}) for n in range(5) for kind in (SBOM, NOTE)]
    assert {each.digest for each in repository.referrers(SUBJECT.digest)} == set(digests)
    registry.requested.clear()
    assert {each.digest for each in repository.referrers(SUBJECT.digest, NOTE)} == set(digests[1::2])
    requested = [path for _, path in registry.requested]
    assert len(requested) == (3 if filters else 5)
    assert all("artifactType=text%2Fplain" in path for path in requested)


@pytest.mark.fault(
    "Network", "a registry has no referrers API, or sends to a page for people instead",
    "the list that clients keep under a tag of the digest is read and written",
)  # fmt: skip
@pytest.mark.parametrize("how", ["404", "400", "405", "a redirect", "another type"])
def test_a_registry_without_the_api(how: str, registry: Writable) -> None:
    """GitHub's redirects to its web pages, which answer HTTP status 429 to programs."""
    people = Writable()
    people.faults.append(answering(429, "GET", Retry_After="3600"))

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        if "/referrers/" not in handler.path:
            return False
        if how == "a redirect":
            send(handler, 303, b"", Location=f"http://{people.host}/packages")
        elif how == "another type":
            send(handler, 200, b"<html>", Content_Type="text/html")
        else:
            send(handler, int(how), b"")
        return True

    registry.faults.append(answer)
    try:
        target, repository = both(registry)
        digest = target.attach(SUBJECT, SBOM, b"{}", SBOM, {})
        assert [each.digest for each in repository.referrers(SUBJECT.digest)] == [digest] == index_of(registry)
        assert not people.requested
    finally:
        people.close()


def test_a_registry_that_fails_to_list_is_no_registry_without_referrers(registry: Writable) -> None:
    registry.faults.append(lambda handler: "/referrers/" in handler.path and answering(500, "GET")(handler))
    _, repository = both(registry)
    with raises("fetch-unreachable"):
        repository.referrers(SUBJECT.digest)


@pytest.mark.fault(
    "Publishing", "two attach to one image at once, and the registry keeps the list of the second alone",
    "each writer reads the list again and restores lost entries",
)  # fmt: skip
def test_updates_that_are_lost(registry: Writable) -> None:
    """Another writer, who read the list before we wrote to it, twice writes theirs over ours."""
    target, repository = both(registry)
    theirs, mine = both(registry)[0].attach(SUBJECT, NOTE, b"theirs", NOTE, {}), []
    over = registry.documents[f"/v2/a/b/manifests/{TAG}"]
    left = [2]

    def overwritten(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "PUT" and handler.path.endswith(TAG) and left[0]:
            left[0] -= 1
            data, _ = received(handler)
            registry.documents[f"/v2/a/b/manifests/{TAG}"] = over
            send(handler, 201, b"", Docker_Content_Digest=digest_of(data))
            return True
        return False

    registry.faults.append(overwritten)
    mine.append(target.attach(SUBJECT, NOTE, b"mine", NOTE, {}))
    assert index_of(registry) == [theirs, *mine]
    registry.documents[f"/v2/a/b/manifests/{TAG}"] = over  # later than our look: the next that we attach brings it back
    mine.append(target.attach(SUBJECT, NOTE, b"mine too", NOTE, {}))
    assert index_of(registry) == [theirs, *mine]
    registry.documents[f"/v2/a/b/manifests/{TAG}"] = over
    target.verify_referrers()
    assert index_of(registry) == [theirs, *mine]
    left[0] = 1 << 30
    with raises("publish-write-failed"):
        target.attach(SUBJECT, NOTE, b"never", NOTE, {})
    assert {each.digest for each in repository.referrers(SUBJECT.digest)} == {theirs}


@pytest.mark.parametrize("how", ["every third request fails", "blobs are dropped", "tokens end", "it is busy"])
def test_a_registry_that_behaves_badly(how: str, either: Writable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a document that goes in pieces."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 300_000)
    if how == "tokens end":
        either.token, either.lives = "t0ken", 3
    else:
        fault = {"every": every(3, 500), "blobs": dropping(1000, "PATCH"), "it": answering(429, "PUT", times=2)}
        either.faults.append(fault[how.split(maxsplit=1)[0]])
    target, repository = both(either)
    digests = [target.attach(SUBJECT, SBOM, data, SBOM, {}) for data in (DATA, b"{}")]
    found = repository.referrers(SUBJECT.digest)
    assert {each.digest for each in found} == set(digests)
    assert {repository.content(each).data for each in found} == {DATA, b"{}"}


def test_what_others_listed_stays(registry: Writable) -> None:
    """Also what imagegen cannot read, and what it says to others."""
    foreign = {"mediaType": MANIFEST, "digest": "sha512:" + "0" * 128, "size": 3, "platform": {"os": "any"}}
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [foreign], "annotations": {}})
    registry.documents[f"/v2/a/b/manifests/{TAG}"] = (INDEX, index.encode())
    registry.documents[f"/v2/a/b/manifests/{foreign['digest']}"] = (MANIFEST, b"{}")
    target, repository = both(registry)
    digest = target.attach(SUBJECT, SBOM, b"{}", SBOM, {})
    assert json.loads(registry.documents[f"/v2/a/b/manifests/{TAG}"][1])["manifests"][0] == foreign
    assert [each.digest for each in repository.referrers(SUBJECT.digest)] == [digest]


def test_a_tag_that_is_no_list(registry: Writable) -> None:
    registry.put("a/b", {"schemaVersion": 2, "mediaType": MANIFEST, "config": {}, "layers": []}, TAG)
    target, repository = both(registry)
    with raises("publish-write-failed"):
        target.attach(SUBJECT, SBOM, b"{}", SBOM, {})
    with raises("fetch-manifest-unsupported"):
        repository.referrers(SUBJECT.digest)


@pytest.mark.fault(
    "Trust", "a list of referrers names an artifact of another image, or a blob has other bytes", "refused, and named"
)
@pytest.mark.parametrize("what", ["subject", "manifest", "blob"])
def test_tampering(what: str, either: Writable, golden: Golden) -> None:
    target, repository = both(either)
    target.attach(SUBJECT, SBOM, b"{}x", SBOM, {})
    (found,) = repository.referrers(SUBJECT.digest)
    if what == "subject":
        found = replace(found, subject=digest_of(b"another"))
    else:
        place = f"/v2/a/b/manifests/{found.digest}" if what == "manifest" else f"/v2/a/b/blobs/{digest_of(b'{}x')}"
        kind, data = either.documents[place]
        either.documents[place] = (kind, data.replace(b"{}x", b"{}y") + b" " * (what == "manifest"))
    with pytest.raises(FetchError) as caught:
        repository.content(found)
    golden.check(caught.value)


def test_a_list_that_goes_on_elsewhere_or_for_ever(registry: Writable) -> None:
    registry.referrers = True
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
    for link, said in (("http://127.0.0.1:1/x", "at another host"), ("", "without an end")):
        fault = answering(200, "GET", body=body, Content_Type=INDEX, Link=f'<{link}>; rel="next"')
        registry.faults[:] = [fault]
        with pytest.raises(FetchError, match=said):
            both(registry)[1].referrers(SUBJECT.digest)


@pytest.mark.fault(
    "Network",
    "a registry's list of tags or referrers goes on for gigabytes, page after page",
    "refused after 64 MiB of pages",
)
@pytest.mark.parametrize("what", ["tags", "referrers"])
def test_a_list_of_gigabytes_ends(what: str, registry: Writable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_repository, "MAX_BYTES", 20_000)
    registry.referrers = True
    requested = 0

    def page(handler: BaseHTTPRequestHandler) -> bool:
        nonlocal requested
        requested += 1
        fields = {"tags": [f"{requested}.{n}" for n in range(100)]} if what == "tags" else {"schemaVersion": 2}
        body = json.dumps({"mediaType": INDEX, "manifests": [], "padding": "x" * 1000, **fields}).encode()
        send(handler, 200, body, Content_Type=INDEX, Link=f'<?page={requested}>; rel="next"')
        return True

    registry.faults[:] = [page]
    repository = both(registry)[1]
    with pytest.raises(FetchError):
        repository.tags() if what == "tags" else repository.referrers(SUBJECT.digest)
    assert requested <= 20


def test_tags(registry: Writable) -> None:
    target, repository = both(registry)
    assert repository.tags() == ()
    manifest = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
    tags = [f"1.{n}" for n in range(7)]
    for tag in tags:
        target.put(manifest, INDEX, tag)
    registry.page = 3
    assert repository.tags() == tuple(tags)
    registry.faults.append(answering(200, "GET", body=b'{"tags": 7}'))
    with raises("fetch-list-malformed"):
        repository.tags()


@given(st.text(max_size=60))
def test_whatever_a_link_says(text: str) -> None:
    found = next_page(text)
    assert found is None or f"<{found}>" in text
    assert (
        next_page(f'<https://a.b/c?d>; title="x; rel=no"; rel="prev", </e?n=1&last=b>;{"rel=next"}') == "/e?n=1&last=b"
    )


entries = st.dictionaries(
    st.text("0123456789abcdef", min_size=64, max_size=64).map("sha256:".__add__),
    st.fixed_dictionaries({"mediaType": st.just(MANIFEST), "size": st.integers(0, 99)}),
    max_size=5,
)


@given(st.lists(entries, max_size=4))
def test_a_list_only_grows(steps: list[dict[str, dict[str, object]]]) -> None:
    index: bytes | None = None
    for step in steps:
        more = {digest: {**entry, "digest": digest} for digest, entry in step.items()}
        before = {each.digest for each in listed(index, "s", "x")} if index else set()
        index = extended(index, more, "x") or index
        after = {each.digest for each in listed(index, "s", "x")} if index else set()
        assert after == before | set(step)
        assert index is None or extended(index, more, "x") is None


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=6,
    )
)
def test_whatever_a_list_holds(entry: object) -> None:
    data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()
    assert listed(data, "s", "x") == ()
    mine, own = referring(SUBJECT, SBOM, {"": SUBJECT}, {})
    longer = extended(data, {own["digest"]: own}, "x")
    assert longer and json.loads(longer)["manifests"] == [entry, own]
    assert listed(longer, "s", "x") == (Referrer(digest_of(mine), len(mine), SBOM, {}, "s"),)
