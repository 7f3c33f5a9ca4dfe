"""Artifacts that refer to an image in a real registry, Debian's docker-registry, where clients list them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagegen.core.net import Client
from imagegen.oci.documents import Descriptor
from imagegen.oci.registry import Content, PushTarget, Repository, parse
from imagegen.oci.registry.referrers import fallback_tag
from tests.support.docker_registry import Hub, login, serving
from tests.support.registry_server import MANIFEST, digest_of

pytestmark = pytest.mark.integration

SBOM = "application/vnd.cyclonedx+json"


@pytest.fixture(scope="module")
def hub(docker_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(docker_registry, tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def image(hub: Hub, name: str) -> Descriptor:
    """An image there, tagged 1, as referrers name it."""
    blobs = hub.push(name, "1", [b"bottom"])
    data = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": blobs[0], "layers": blobs[1:]}).encode()
    return Descriptor(MANIFEST, digest_of(data), len(data))


def test_what_is_attached_at_once_is_all_listed(hub: Hub, tmp_path: Path) -> None:
    settings, name = login(tmp_path / "home", hub.host), parse(f"{hub.host}/people/attached")
    subject = image(hub, "people/attached")
    with Client(settings) as client:
        repository = Repository(name, client, settings)
        assert repository.referrers(subject.digest) == ()
        one = PushTarget(name, client, settings)
        sbom = one.attach(subject, SBOM, b"{}", SBOM, {"a": "b"})
        (found,) = repository.referrers(subject.digest)
        assert (found.digest, found.artifact_type, found.annotations) == (sbom, SBOM, {"a": "b"})
        assert repository.content(found) == Content(SBOM, {"a": "b"}, SBOM, b"{}")
        with ThreadPoolExecutor(4) as pool:
            notes = {
                *pool.map(lambda n: one.attach(subject, "text/plain", f"{n}".encode(), "text/plain", {}), range(8))
            }
        assert {each.digest for each in repository.referrers(subject.digest, "text/plain")} == notes
        assert set(repository.tags()) == {"1", fallback_tag(subject.digest)}
