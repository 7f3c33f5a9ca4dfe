"""The loopback registry, as a client sees it: what it serves, and that it serves nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagegen.core.store import Store
from imagegen.engine.load import Loadable, Registry, serving
from imagegen.oci.documents import Descriptor

BLOB = os.urandom(3 << 20)
MANIFEST = b'{"schemaVersion":2}'


class Served:
    def __init__(self, registry: Registry, manifest: str, blob: str, other: str) -> None:
        host, _, self.path = registry.repository.partition("/")
        self.host, self.registry = host, registry
        self.manifest = f"http://{host}/v2/{self.path}/manifests/{manifest}"
        self.blob = f"http://{host}/v2/{self.path}/blobs/{blob}"
        self.other = f"http://{host}/v2/{self.path}/blobs/{other}"
        self.sent: list[int] = []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = Store(tmp_path_factory.mktemp("store"))
    manifest = Descriptor("application/vnd.oci.image.manifest.v1+json", store.write(MANIFEST), len(MANIFEST))
    blob = Descriptor("application/vnd.oci.image.layer.v1.tar+zstd", store.write(BLOB), len(BLOB))
    other = store.write(b"a blob of another image")
    sent: list[int] = []
    with serving(Loadable(store, manifest, (blob,)), sent.append) as registry:
        found = Served(registry, manifest.digest, blob.digest, other)
        found.sent = sent
        yield found


def test_no_engine_has_connected_before_the_first_request(tmp_path: Path) -> None:
    store = Store(tmp_path)
    manifest = Descriptor("m", store.write(MANIFEST), len(MANIFEST))
    with serving(Loadable(store, manifest, ()), lambda _: None) as registry:
        host = registry.repository.partition("/")[0]
        assert requests.get(f"http://{host}/v2/", timeout=5).status_code == 200
        assert not registry.reached.is_set()
        requests.get(f"http://{registry.repository.replace('/', '/v2/', 1)}/manifests/{manifest.digest}", timeout=5)
        assert registry.reached.is_set()
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://{host}/v2/", timeout=5)


def test_manifest_and_blob(served: Served) -> None:
    manifest = requests.get(served.manifest, timeout=5)
    assert (manifest.status_code, manifest.content) == (200, MANIFEST)
    assert manifest.headers["Content-Type"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest.headers["Docker-Content-Digest"] == served.manifest.rpartition("/")[2]
    before = sum(served.sent)
    assert requests.get(served.blob, timeout=5).content == BLOB
    assert sum(served.sent) - before == len(BLOB), "progress counts the bytes of blobs"


def test_head_has_a_length_and_no_body(served: Served) -> None:
    with requests.Session() as session:
        for _ in range(2):  # a body would break the second answer on the same connection
            answer = session.head(served.blob, timeout=5)
            assert (answer.status_code, answer.headers["Content-Length"]) == (200, str(len(BLOB)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.integers(0, len(BLOB) - 1), st.one_of(st.none(), st.integers(0, 2 * len(BLOB))))
def test_ranges(served: Served, start: int, length: int | None) -> None:
    stop = "" if length is None else str(start + length)
    answer = requests.get(served.blob, headers={"Range": f"bytes={start}-{stop}"}, timeout=5)
    expected = BLOB[start:] if length is None else BLOB[start : start + length + 1]
    assert answer.content == expected
    if len(expected) < len(BLOB):
        assert answer.status_code == 206
        assert answer.headers["Content-Range"] == f"bytes {start}-{start + len(expected) - 1}/{len(BLOB)}"


def test_a_range_past_the_end_is_refused(served: Served) -> None:
    answer = requests.get(served.blob, headers={"Range": f"bytes={len(BLOB)}-"}, timeout=5)
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, f"bytes */{len(BLOB)}")


def test_nothing_else_is_served(served: Served) -> None:
    digest = served.blob.rpartition("/")[2]
    for address in (
        served.other,
        f"http://{served.host}/v2/imagegen/guess/blobs/{digest}",
        f"http://{served.host}/v2/{served.path}/blobs/../../../index.json",
        f"http://{served.host}/v2/_catalog",
        f"http://{served.host}/",
    ):
        assert requests.get(address, timeout=5).status_code == 404, address
    assert requests.put(served.blob, data=b"x", timeout=5).status_code == 501


def test_a_tls_hello_is_answered_with_a_status_line(served: Served) -> None:
    """Without it containerd does not fall back to plain HTTP."""
    host, _, port = served.host.partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_two_registries_differ_in_path(served: Served, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with serving(Loadable(store, Descriptor("m", store.write(b"{}"), 2), ()), lambda _: None) as other:
        assert other.repository.partition("/")[2] != served.path
        assert other.repository.startswith("127.0.0.1:")
