"""The team's wheelhouse, on the stand-in of registry_server_writes.py: what goes there comes back, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.lock.builds import BuiltWheel
from imagegen.oci.documents import digest_of
from imagegen.oci.registry import parse
from imagegen.wheels.remote_wheelhouse import RemoteWheelhouse, is_plain_name, place, tag
from imagegen.wheels.wheelhouse import known
from tests.support.built_wheels import DATA, KEY, LOG, built
from tests.support.errors import raises
from tests.support.registry_server import send
from tests.support.registry_server_writes import Writable, answering

TAG = KEY.replace(":", "-")
MANIFEST = f"/v2/team/wheels/manifests/{TAG}"
OTHER = digest_of(b"another key")


@pytest.fixture
def registry() -> Iterator[Writable]:
    server = Writable()
    yield server
    server.close()


@pytest.fixture
def here(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


def team(registry: Writable) -> RemoteWheelhouse:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    client = Client(settings, attempts=2, timeout=(2.0, 2.0), backoff=0.01)
    return RemoteWheelhouse(parse(f"{registry.host}/team/wheels"), client, settings)


def pushed(registry: Writable, store: Store) -> BuiltWheel:
    wheel = built(store)
    team(registry).push(wheel, store, Quiet())
    return wheel


def test_what_is_pushed_is_pulled_elsewhere(registry: Writable, here: Store, there: Store) -> None:
    wheel = pushed(registry, here)
    assert team(registry).fetch(KEY, there, Quiet(), required=("demo", "1.0")) == wheel
    assert known(Store(there.root), KEY) == wheel
    assert there.read(wheel.digest) == DATA
    assert there.read(str(wheel.record["log"])) == LOG


def test_a_lookup_is_one_small_document(registry: Writable, here: Store) -> None:
    wheel = pushed(registry, here)
    registry.requested.clear()
    asking = team(registry)
    for _ in range(2):
        found = asking.lookup(KEY)
        assert found
        assert (found.filename, found.sha256, found.size) == (wheel.filename, wheel.sha256, wheel.size)
    assert registry.requested == [("GET", "/v2/"), ("GET", MANIFEST), ("GET", MANIFEST)]


def test_what_a_registry_lacks_is_a_miss(registry: Writable, here: Store, there: Store) -> None:
    """The repository at first, then a wheel."""
    assert team(registry).lookup(KEY) is None
    assert team(registry).fetch(KEY, there, Quiet()) is None
    pushed(registry, here)
    assert team(registry).lookup(OTHER) is None
    assert not team(registry).has(OTHER)
    assert team(registry).has(KEY)


def test_the_artifact_is_as_the_specification_has_it(registry: Writable, here: Store) -> None:
    wheel = pushed(registry, here)
    kind, data = registry.documents[MANIFEST]
    manifest = json.loads(data)
    assert kind == manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["artifactType"] == "application/vnd.imagegen.wheel.v1"
    assert manifest["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",  # as image-spec gives it
        "size": 2,
    }
    titles = [layer["annotations"]["org.opencontainers.image.title"] for layer in manifest["layers"]]
    assert titles == [wheel.filename, "record.json", "build.log"]
    assert manifest["layers"][0]["digest"] == wheel.digest
    registry.documents.clear()
    pushed(registry, here)
    assert registry.documents[MANIFEST][1] == data


def test_a_wheel_whose_log_has_gone_is_pushed_without_it(registry: Writable, here: Store, there: Store) -> None:
    wheel = built(here)
    here.path(digest_of(LOG)).unlink()
    team(registry).push(wheel, here, Quiet())
    assert team(registry).fetch(KEY, there, Quiet()) == wheel
    assert not there.has(digest_of(LOG))


@pytest.mark.parametrize(
    "required", [("demo", "2.0"), ("demos", "1.0"), ("demo", "1.0+cu130"), ("demo", "no version")]
)  # fmt: skip
def test_another_wheel_than_asked(required: tuple[str, str], registry: Writable, here: Store, there: Store) -> None:
    pushed(registry, here)
    with raises("fetch-digest-mismatch"):
        team(registry).fetch(KEY, there, Quiet(), required=required)
    assert known(there, KEY) is None


@pytest.mark.parametrize(
    ("filename", "name", "version", "same"),
    [
        ("flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", "flash-attn", "2.8.3", True),
        # A lock takes no other version than its own: kept here, such a wheel would be in the way of every build.
        ("flash_attn-2.8.3+cu130torch2.11-cp312-cp312-linux_x86_64.whl", "flash-attn", "2.8.3", False),
        ("flash_attn-2.8.3+cu130torch2.11-cp312-cp312-linux_x86_64.whl", "flash-attn", "2.8.3+cu130torch2.11", True),
        ("flash_attn-2.8.3-cp312-cp312-any\x1b[2J.whl", "flash-attn", "2.8.3", False),
        ("flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", "flash-attn", "2.8.3+cu130", False),
        ("flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", "flash_attn", "2.8.3", False),  # which is no normalised name
        ("flash_attn-2.8.3.post1-cp312-cp312-linux_x86_64.whl", "flash-attn", "2.8.3", False),
        ("flash_attn-2.8.3-cp312-cp312-any/../../x.whl", "flash-attn", "2.8.3", False),
        ("../flash_attn-2.8.3-cp312-cp312-any.whl", "flash-attn", "2.8.3", False),
        ("flash_attn-2.8.3-cp312-cp312-äny.whl", "flash-attn", "2.8.3", False),
        ("flash_attn-2.8.3.tar.gz", "flash-attn", "2.8.3", False),
    ],
)
def test_what_a_file_is_called(filename: str, name: str, version: str, *, same: bool) -> None:
    assert is_plain_name(filename, name, version) is same


Change = Callable[[dict[str, Any]], Any]
CHANGES: dict[str, Change] = {
    "an image": lambda document: document.update(artifactType="application/vnd.oci.image.config.v1+json"),
    "no type": lambda document: document.pop("artifactType"),
    "an index": lambda document: document.update(manifests=[]),
    "another key": lambda document: document["annotations"].update({"dev.imagegen.wheel.key": OTHER}),
    "no key": lambda document: document.pop("annotations"),
    "another version": lambda document: document["annotations"].update({"dev.imagegen.wheel.version": "2.0"}),
    "another name": lambda document: document["annotations"].update({"dev.imagegen.wheel.name": "evil"}),
    "a path": lambda document: titled(document, "../demo-1.0-py3-none-any.whl"),
    "no wheel": lambda document: titled(document, "demo-1.0.tar.gz"),
    "a line break": lambda document: titled(document, "demo-1.0-py3-none-any\n.whl"),
    "no file": lambda document: document["layers"].pop(0),
    "no record": lambda document: document["layers"].pop(1),
    "two files": lambda document: document["layers"].append(document["layers"][0]),
    "larger": lambda document: document["layers"][0].update(size=len(DATA) + 1),
    "endless": lambda document: document["layers"][0].update(size=1 << 60),
    "other bytes": lambda document: document["layers"][0].update(digest=document["layers"][1]["digest"]),
    "another's record": lambda document: document["layers"][1].update(document["layers"][2], mediaType=RECORD),
    "titles that are none": lambda document: document["layers"][0].update(annotations=[]),
}
RECORD = "application/vnd.imagegen.wheel.v1.record+json"


def titled(document: dict[str, Any], title: str) -> None:
    document["layers"][0]["annotations"]["org.opencontainers.image.title"] = title


@pytest.mark.fault(
    "Network", "the team's wheelhouse has another wheel under the key, another name, another record, another file",
    "refused; nothing of it is kept",
)  # fmt: skip
@pytest.mark.parametrize("name", CHANGES)
def test_a_manifest_that_lies(name: str, registry: Writable, here: Store, there: Store) -> None:
    pushed(registry, here)
    kind, data = registry.documents[MANIFEST]
    document = json.loads(data)
    CHANGES[name](document)
    registry.documents[MANIFEST] = (kind, json.dumps(document).encode())
    with pytest.raises(FetchError):
        team(registry).fetch(KEY, there, Quiet())
    assert known(there, KEY) is None
    registry.documents[MANIFEST] = (kind, data)
    assert team(registry).fetch(KEY, there, Quiet())


@pytest.mark.parametrize(
    "record",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"record": []}', "changed", "more"],
    ids=lambda each: each[:9],
)
def test_a_record_that_lies(record: bytes | str, registry: Writable, here: Store, there: Store) -> None:
    wheel = pushed(registry, here)
    kind, data = registry.documents[MANIFEST]
    document = json.loads(data)
    stored = json.loads(registry.documents[f"/v2/team/wheels/blobs/{document['layers'][1]['digest']}"][1])
    changes = {"changed": {"key": OTHER}, "more": {"unheard": "of"}}
    if isinstance(record, str):
        record = json.dumps(stored | changes[record]).encode()
    document["layers"][1] |= registry.blob("team/wheels", record, RECORD)
    registry.documents[MANIFEST] = (kind, json.dumps(document).encode())
    with raises("fetch-digest-mismatch"):
        team(registry).fetch(KEY, there, Quiet())
    assert not there.has(wheel.digest)


def test_bytes_of_another_digest_are_not_kept(registry: Writable, here: Store, there: Store) -> None:
    wheel = pushed(registry, here)
    registry.instead[f"/v2/team/wheels/blobs/{wheel.digest}"] = lambda handler: send(handler, 200, b"x" * wheel.size)
    with raises("fetch-digest-mismatch"):
        team(registry).fetch(KEY, there, Quiet())
    assert known(there, KEY) is None


def test_a_wheelhouse_out_of_reach_or_closed(registry: Writable, here: Store) -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull})
    nowhere = RemoteWheelhouse(parse("127.0.0.1:1/team/wheels"), Client(settings), settings)
    with raises("fetch-unreachable"):
        nowhere.lookup(KEY)
    with raises("publish-write-failed"):
        nowhere.reach()
    registry.faults.append(answering(403, "GET", "HEAD", "POST"))
    with raises("fetch-unavailable"):
        team(registry).lookup(KEY)
    with raises("publish-denied"):
        team(registry).push(built(here), here, Quiet())


def test_a_push_that_fails_leaves_no_wheel(registry: Writable, here: Store) -> None:
    registry.faults.append(answering(405, "PUT"))
    with raises("publish-write-failed"):
        pushed(registry, here)
    assert team(registry).lookup(KEY) is None


def test_places() -> None:
    def settings(**env: str) -> Settings:
        return Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull, **env})

    assert place(settings()) is None
    assert place(settings(IMAGEGEN_WHEELHOUSE="")) is None
    named = settings(IMAGEGEN_WHEELHOUSE="ghcr.io/team/wheels")
    assert str(place(named)) == "ghcr.io/team/wheels"
    assert str(place(named, "quay.io/a/b", "--to")) == "quay.io/a/b"
    wrong = (("ghcr.io/a:1", "--to"), ("", "--to"), ("UPPER/x y", None))
    for text, option in wrong:
        with raises("usage-no-repository") as caught:
            place(settings(IMAGEGEN_WHEELHOUSE=text), text if option else None, option or "")
        assert caught.value.what.startswith(option or "IMAGEGEN_WHEELHOUSE")
        assert "registry.example.com/team/wheels" in str(caught.value)


@given(st.text(max_size=80))
def test_no_key_but_a_digest_becomes_a_tag(text: str) -> None:
    with raises("usage-invalid-value"):
        tag(text)
    assert tag(digest_of(text.encode("utf-8", "surrogatepass"))).startswith("sha256-")
