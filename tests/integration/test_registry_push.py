"""Writing to a real registry, Debian's docker-registry on loopback, and pulling back what was written."""

from __future__ import annotations

import json
import random
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from imagegen.core.errors import PublishError
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.lock.builds import BuiltWheel
from imagegen.oci.documents import Descriptor, Platform, digest_of
from imagegen.oci.registry import PushTarget, Repository, parse, resolve, upload
from imagegen.wheels.remote_wheelhouse import RemoteWheelhouse
from imagegen.wheels.wheelhouse import known
from tests.support.docker_registry import Hub, login, serving
from tests.support.registry_server import CONFIG, LAYER, MANIFEST

pytestmark = pytest.mark.integration

PIECE = 1 << 20
DATA = random.Random(6).randbytes(4 * PIECE + 12345)


@pytest.fixture(scope="module")
def hub(docker_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(docker_registry, tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def stored(root: Path, *contents: bytes) -> tuple[Store, list[Descriptor]]:
    store = Store(root / "store")
    return store, [Descriptor(LAYER, store.write(data), len(data)) for data in contents]


class Counter:
    def __init__(self) -> None:
        self.total, self._lock = 0, threading.Lock()

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def advance(self, amount: int) -> None:
        with self._lock:
            self.total += amount


def test_an_image_goes_there_and_comes_back(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE_BYTES", PIECE)
    settings = login(tmp_path / "home", hub.host)
    config = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": {"type": "layers"}}
    config["rootfs"] = {"type": "layers", "diff_ids": [digest_of(DATA), digest_of(b"small")]}
    store, (large, small, described) = stored(tmp_path, DATA, b"small", json.dumps(config).encode())
    layers = [{"mediaType": LAYER.removesuffix("+gzip"), "digest": b.digest, "size": b.size} for b in (large, small)]
    of_config = {"mediaType": CONFIG, "digest": described.digest, "size": described.size}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": of_config, "layers": layers}
    name, counter = parse(f"{hub.host}/people/pushed:1"), Counter()
    with Client(settings) as client:
        target = PushTarget(name, client, settings)
        assert target.upload_all([large, small, described], store, counter).sent.blobs == 3
        assert counter.total == large.size + small.size + described.size
        assert target.upload_all([large, small, described], store, counter).there.blobs == 3
        digest = target.put(json.dumps(manifest).encode(), MANIFEST, "1")
        assert target.manifest("1") == digest
        image = resolve(name, Platform("linux", "amd64"), client, settings)
        assert image.digest == digest
        there = Store(tmp_path / "there")
        for layer in image.layers:
            Repository(name, client, settings).download(layer.digest, layer.size, there, counter)
        assert there.read(large.digest) == DATA

        # Into another repository nothing has to be sent.
        other = PushTarget(
            parse(f"{hub.host}/people/other"), client, settings, mounts=[parse(f"{hub.host}/none"), name]
        )
        assert other.upload(large, store, counter) == "mounted"


class Cutting(socketserver.ThreadingTCPServer):
    """A way to `host` that is cut once, after so many bytes of a connection; `carried` counts what went over."""

    daemon_threads = True

    def __init__(self, host: str, after: int) -> None:
        self.carried, self.cut, self._lock = 0, False, threading.Lock()
        way = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                name, _, port = host.partition(":")
                with socket.create_connection((name, int(port))) as upstream:
                    back = threading.Thread(target=carry, args=(upstream, self.request))
                    back.start()
                    carry(self.request, upstream, way.counted(after))
                    back.join()

        super().__init__(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"

    def counted(self, after: int) -> Callable[[int], bool]:
        """Return whether the connection stays after so many more bytes."""
        here = 0

        def goes_on(amount: int) -> bool:
            nonlocal here
            here += amount
            with self._lock:
                self.carried += amount
                if here > after and not self.cut:
                    self.cut = True
                    return False
            return True

        return goes_on


def carry(source: socket.socket, target: socket.socket, goes_on: Callable[[int], bool] = lambda _: True) -> None:
    with suppress(OSError):
        while (data := source.recv(1 << 16)) and goes_on(len(data)):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(host: str, after: int) -> Iterator[Cutting]:
    with Cutting(host, after) as way:
        thread = threading.Thread(target=way.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield way
        finally:
            way.shutdown()
            thread.join()


def test_a_push_that_broke_off_arrives(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This registry (distribution 2.8) forgets an upload whose last piece came in part, so all is sent again."""
    monkeypatch.setattr(upload, "PIECE_BYTES", PIECE)
    store, (blob,) = stored(tmp_path, DATA)
    with cutting(hub.host, 2 * PIECE + PIECE // 2) as way:
        settings = login(tmp_path / "home", way.host)
        counter = Counter()
        with Client(settings, backoff=0.01) as client:
            assert (
                PushTarget(parse(f"{way.host}/people/broken-off"), client, settings).upload(blob, store, counter)
                == "sent"
            )
    assert counter.total == blob.size
    assert way.cut and way.carried < 2 * blob.size
    settings = login(tmp_path / "home", hub.host)
    there = Store(tmp_path / "there")
    with Client(settings) as client:
        Repository(parse(f"{hub.host}/people/broken-off"), client, settings).download(
            blob.digest, blob.size, there, counter
        )
    assert there.read(blob.digest) == DATA


def test_the_team_s_wheelhouse(hub: Hub, tmp_path: Path) -> None:
    settings = login(tmp_path / "home", hub.host)
    store, (file, log) = stored(tmp_path, DATA, b"[1/73] nvcc")
    key = digest_of(b"key")
    record = {"units": 73, "log": log.digest}
    wheel = BuiltWheel(key, "demo", "1.0", "demo-1.0-py3-none-any.whl", file.digest[7:], file.size, record)
    there = Store(tmp_path / "there")
    with Client(settings) as client:
        team = RemoteWheelhouse(parse(f"{hub.host}/team/wheels"), client, settings)
        assert team.lookup(key) is None, "the repository does not exist yet"
        assert not team.has(key)
        team.push(wheel, store, Quiet())
        assert team.has(key)
        assert team.fetch(key, there, Quiet(), required=("demo", "1.0")) == wheel
        assert team.lookup(digest_of(b"another key")) is None
    assert known(Store(there.root), key) == wheel


def test_who_may_not_write(hub: Hub, docker_registry: Path, tmp_path: Path) -> None:
    store, (blob,) = stored(tmp_path, b"small")
    settings = login(tmp_path / "home", hub.host, "another-password")
    with Client(settings) as client, pytest.raises(PublishError, match="may not be written to") as caught:
        PushTarget(parse(f"{hub.host}/people/x"), client, settings).upload(blob, store, Counter())
    assert f"`docker login {hub.host}`" in str(caught.value)
    assert "another-password" not in str(caught.value)
    with serving(docker_registry, tmp_path / "closed", read_only=True) as closed:
        settings = login(tmp_path / "home", closed.host)
        with Client(settings) as client, pytest.raises(PublishError, match="it is read-only"):
            PushTarget(parse(f"{closed.host}/people/x"), client, settings).upload(blob, store, Counter())
