"""Layers as zstd:stargz, mounted by stargz-snapshotter from a registry on loopback before they are pulled."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.oci import MANIFEST_TYPE, ZSTD_TYPE, canonical_json, digest_of
from imagegen.core.progress import Quiet
from imagegen.core.registry import PushTarget, parse
from imagegen.core.store import Store
from imagegen.image.layers import Image, Layer, image
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.image import keep
from imagegen.image.layers.recompress import recompressed
from imagegen.image.layers.tar import TarWriter
from tests.support import stargz
from tests.support.docker_registry import Hub, login, serving
from tests.support.layer_inputs import lock_of
from tests.support.registry_proxy import Way
from tests.support.stargz import Containerd

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LOCK = lock_of()
NOISE = random.Random(21)
# Of several chunks; of one; of none. And enough files behind them that all of the layer is much more than these.
FILES = {
    "opt/venv/library.so": NOISE.randbytes(9 << 20),
    "opt/venv/module.py": NOISE.randbytes(4000),
    "opt/venv/empty": b"",
    **{f"opt/venv/other{number:03}.py": NOISE.randbytes(60_000) for number in range(200)},
}
ANNOTATION = "containerd.io/snapshot/stargz/toc.digest"


def build(store: Store) -> Image:
    with store.writer() as blob:
        sink = LayerSink(blob)
        tar = TarWriter(sink.write)
        for path, content in sorted(FILES.items()):
            tar.file(f"/{path}", len(content), [content])
        tar.link("/opt/venv/link", "module.py")
        tar.close()
        diff_id = sink.close()
        layer = Layer(ZSTD_TYPE, blob.commit(), blob.size, diff_id, "files", digest_of(b"files"), sink.unpacked)
    return keep(store, image(LOCK, [layer]))


def with_digest_of_another_table(store: Store, other: Image) -> Image:
    manifest = json.loads(other.manifest)
    manifest["layers"][0]["annotations"][ANNOTATION] = digest_of(b"another table")
    data = canonical_json(manifest)
    return keep(store, replace(other, digest=digest_of(data), manifest=data))


@pytest.fixture(scope="module")
def hub(docker_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("hub")
    with serving(docker_registry, root, anonymous=True) as hub:
        store = Store(root / "store")
        plain = build(store)
        packed = recompressed(LOCK, plain, "zstd:stargz", store, Quiet())
        images = {"plain": plain, "stargz": packed, "forged": with_digest_of_another_table(store, packed)}
        with Client(login(root / "home", hub.host)) as client:
            target = PushTarget(parse(f"{hub.host}/people/files"), client, login(root / "home", hub.host))
            for tag, each in images.items():
                target.upload_all(each.blobs, store, Quiet().meter("", 0))
                target.put(each.manifest, MANIFEST_TYPE, tag)
        yield hub


@pytest.fixture(scope="module")
def programs(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stargz.programs(tmp_path_factory.mktemp("stargz") / "programs", settings)


@pytest.fixture
def client(programs: Path, tmp_path: Path) -> Iterator[Containerd]:
    with stargz.containerd(programs, tmp_path, 50_000) as client:
        yield client


@pytest.fixture
def way(hub: Hub) -> Iterator[Way]:
    way = Way(hub)
    yield way
    way.close()


def test_files_are_fetched_when_they_are_read(client: Containerd, way: Way) -> None:
    client.pull(f"{way.host}/people/files:stargz", "stargz")
    (layer,) = client.mounted()
    assert way.answered < 200_000, "the manifest, the config, the table"
    earlier = way.answered
    module = FILES["opt/venv/module.py"]
    assert (layer / "opt/venv/module.py").read_bytes() == (layer / "opt/venv/link").read_bytes() == module
    assert 4000 < way.answered - earlier < 200_000, "one file: the granularity is 50 kB"


def test_all_files_are_as_they_were(client: Containerd, way: Way) -> None:
    client.pull(f"{way.host}/people/files:stargz", "stargz")
    (layer,) = client.mounted()
    assert {path: (layer / path).read_bytes() for path in FILES} == FILES


@pytest.mark.parametrize("tag", ["plain", "forged"])
def test_a_layer_without_its_table_is_pulled(client: Containerd, way: Way, tag: str) -> None:
    """Also where the manifest names the digest of another one: the table is verified."""
    client.pull(f"{way.host}/people/files:{tag}", "stargz")
    assert client.mounted() == []
    assert way.answered > 20 << 20
