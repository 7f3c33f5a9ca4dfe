"""Asking before the work: may anything be written, and which blobs need not be in the store at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.errors import PublishError
from imagegen.core.net import Client
from imagegen.engine import load
from imagegen.oci.documents import Descriptor, digest_of
from imagegen.oci.registry import PushTarget, parse
from imagegen.oci.registry.reference import engine_name
from tests.support.environment import environment
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.registry_server import LAYER
from tests.support.registry_server_writes import Writable, answering

DATA = b"a layer"
BLOB = Descriptor(LAYER, digest_of(DATA), len(DATA))


@pytest.fixture
def registry() -> Iterator[Writable]:
    registry = Writable()
    yield registry
    registry.close()


@pytest.fixture
def target(registry: Writable, tmp_path: Path) -> Iterator[PushTarget]:
    settings = Settings.from_environment(environment(tmp_path))
    mounts = [parse(f"{registry.host}/acme/{name}") for name in ("one", "two")]
    with Client(settings, attempts=1) as client:
        yield PushTarget(parse(f"{registry.host}/acme/rl"), client, settings, mounts=mounts)


def test_a_probe_leaves_nothing(registry: Writable, target: PushTarget) -> None:
    target.require_writable()
    assert [method for method, _ in registry.requested] == ["POST", "DELETE"]
    assert not registry.uploads
    registry.faults.append(answering(405, "DELETE"))
    target.require_writable()  # it ends by itself


@pytest.mark.parametrize(
    ("status", "why"), [(405, "it is read-only"), (404, "it has no such repository"), (403, "403")]
)
def test_a_probe_shows_missing_write_access(
    registry: Writable, target: PushTarget, status: int, why: str, golden: Golden
) -> None:
    registry.faults.append(answering(status, "POST"))
    with pytest.raises(PublishError) as refused:
        target.require_writable()
    golden.check(refused.value)
    assert why in str(refused.value)


def test_a_blob_is_linked_without_being_here(registry: Writable, target: PushTarget) -> None:
    assert not target.link(BLOB)
    registry.blob("acme/two", DATA, LAYER)
    assert target.link(BLOB)
    assert registry.documents[f"/v2/acme/rl/blobs/{BLOB.digest}"][1] == DATA
    registry.requested.clear()
    assert target.link(BLOB)
    assert [method for method, _ in registry.requested] == ["HEAD"], "it is there"


@pytest.mark.parametrize("status", [None, 400, 403])
def test_a_registry_that_links_nothing_keeps_nothing_begun(
    registry: Writable, target: PushTarget, status: int | None
) -> None:
    registry.blob("acme/two", DATA, LAYER)
    registry.mounts = False
    if status:
        registry.faults.append(answering(status, "POST"))
    assert not target.link(BLOB)
    assert not registry.uploads


@pytest.mark.parametrize(
    ("name", "env", "called"),
    [
        ("acme/rl", {}, "docker.io/acme/rl"),
        ("ghcr.io/acme/rl", {}, "ghcr.io/acme/rl"),
        ("ghcr.io/acme/rl", {"IMAGEGEN_REGISTRY_GHCR_IO": "https://me:pw@harbor.io/proxy"}, "harbor.io/proxy/acme/rl"),
        ("acme/rl", {"IMAGEGEN_REGISTRY_DOCKER_IO": "127.0.0.1:5000"}, "127.0.0.1:5000/acme/rl"),
    ],
)  # fmt: skip
def test_how_an_engine_calls_a_repository(name: str, env: dict[str, str], called: str) -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull, **env})
    assert engine_name(parse(name), settings) == called


class Docker:
    """A stand-in for the engine's API, as far as a pull goes. tests/integration/test_publish.py has the real one."""

    def __init__(self, *events: dict[str, str]) -> None:
        self.events, self.images, self.requested = events, dict[str, str](), list[dict[str, object]]()
        self.api = self.images_api = self

    def pull(self, name: str, digest: str, **more: object) -> list[dict[str, str]]:
        self.requested.append({"name": name, "digest": digest, **more})
        if not any("error" in event for event in self.events):
            self.images[f"{name}@{digest}"] = digest
        return list(self.events)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Docker:
    engine = Docker({"status": "Pulling"}, {"status": "Done"})
    monkeypatch.setattr(load, "image_digest", lambda client, ref: client.images.get(ref))
    monkeypatch.setattr(load, "tag_image", lambda client, ref, tag: client.images.update({tag: ref}))
    monkeypatch.setattr(load, "forget", lambda client, ref: client.images.pop(ref))
    return engine


def test_an_engine_pulls_with_the_users_credentials_and_keeps_one_name(engine: Docker) -> None:
    digest = digest_of(b"image")
    load.pull(engine, "ghcr.io/acme/rl", digest, "imagegen/demo:x", ("me", "secret"), _Quiet())  # type: ignore[arg-type]
    assert engine.requested[0]["auth_config"] == {"username": "me", "password": "secret"}
    assert engine.images == {"imagegen/demo:x": digest}
    engine.images[digest] = digest
    load.pull(engine, "ghcr.io/acme/rl", digest, "imagegen/demo:y", None, _Quiet())  # type: ignore[arg-type]
    assert len(engine.requested) == 1, "it has it"


def test_what_an_engine_cannot_pull_is_reported_without_secrets(engine: Docker) -> None:
    engine.events = ({"error": "denied: requested access to the resource is denied"},)
    with raises("engine-load-failed") as refused:
        load.pull(engine, "ghcr.io/acme/rl", digest_of(b"i"), "imagegen/demo:x", ("me", "s3cret"), _Quiet())  # type: ignore[arg-type]
    assert "requested access" in str(refused.value)
    assert "s3cret" not in str(refused.value)


class _Quiet:
    def say(self, text: str) -> None:
        assert "secret" not in text
