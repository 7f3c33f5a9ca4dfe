"""Layers as zstd:chunked, pulled by Debian's Podman and by Docker from a registry on loopback."""

from __future__ import annotations

import hashlib
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.core.config import Settings
from imagegen.core.net import Client
from imagegen.core.oci import MANIFEST_TYPE, ZSTD_TYPE, digest_of
from imagegen.core.progress import Quiet
from imagegen.core.registry import PushTarget, parse
from imagegen.core.registry.reference import engine_name
from imagegen.core.store import Store
from imagegen.image.layers import Image, Layer, image
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.image import keep
from imagegen.image.layers.recompress import recompressed
from imagegen.image.layers.tar import TarWriter
from imagegen.run.engine import Engine
from tests.support import podman
from tests.support.docker_registry import PASSWORD, USER, Hub, login, serving
from tests.support.layer_inputs import lock_of
from tests.support.podman import Podman
from tests.support.registry_proxy import Way

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LOCK = lock_of()
MIB = 1 << 20
NOISE = random.Random(20)
LIBRARY = NOISE.randbytes(9 * MIB)
SMALL = {f"/opt/venv/module{number:03}.py": NOISE.randbytes(4000) for number in range(200)}
BEFORE = {**SMALL, "/opt/venv/library.so": LIBRARY, "/opt/venv/empty": b"", "/opt/venv/" + "n" * 120: b"long"}
# One small file is another, and so is the library from its fifth MiB on: its first chunk, of 4 MiB, stays.
AFTER = {**BEFORE, "/opt/venv/module007.py": b"changed", "/opt/venv/library.so": LIBRARY[: 5 * MIB]}


def build(store: Store, files: dict[str, bytes]) -> Image:
    with store.writer() as blob:
        sink = LayerSink(blob)
        tar = TarWriter(sink.write)
        for path, content in sorted(files.items()):
            tar.file(path, len(content), [content])
        tar.link("/opt/venv/link", "library.so")
        tar.close()
        diff_id = sink.close()
        key = digest_of(diff_id.encode())
        layer = Layer(ZSTD_TYPE, blob.commit(), blob.size, diff_id, "files", key, sink.unpacked)
    return keep(store, image(LOCK, [layer]))


@pytest.fixture(scope="module")
def hub(docker_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(docker_registry, tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="module")
def images(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """The images by their tags in the repository people/files."""
    root = tmp_path_factory.mktemp("images")
    store, settings = Store(root / "store"), login(root / "home", hub.host)
    found: dict[str, Image] = {}
    for name, files in (("before", BEFORE), ("after", AFTER)):
        plain = build(store, files)
        found |= {name: plain, f"{name}-chunked": recompressed(LOCK, plain, "zstd:chunked", store, Quiet())}
    with Client(settings) as client:
        target = PushTarget(parse(f"{hub.host}/people/files"), client, settings)
        for tag, each in found.items():
            target.upload_all(each.blobs, store, Quiet().meter("", 0))
            target.put(each.manifest, MANIFEST_TYPE, tag)
    return found


@pytest.fixture(scope="module")
def tree(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return podman.tree(Store(tmp_path_factory.mktemp("podman") / "store"), settings)


@pytest.fixture
def way(hub: Hub) -> Iterator[Way]:
    way = Way(hub)
    yield way
    way.close()


def test_podman_fetches_what_differs(tree: Path, images: dict[str, Image], way: Way, tmp_path: Path) -> None:
    client = Podman(tree, tmp_path / "podman")
    fetched = {}
    for tag in ("before-chunked", "after-chunked"):
        earlier = way.answered
        log = client.pull(f"{way.host}/people/files:{tag}", f"{USER}:{PASSWORD}")
        assert log.count("Retrieved partial blob") == 1, log
        fetched[tag] = way.answered - earlier
    whole = images["before-chunked"].layers[0].size
    assert 0 < fetched["before-chunked"] - whole < 50_000, "the manifest, the config and the borders of the ranges"
    assert MIB < fetched["after-chunked"] < MIB + 100_000, "the second chunk of the library, a module, the table"
    # Podman makes each tar again from the files and tar-split, and checks the CRC-64 of each file.
    for tag in fetched:
        ref = f"{way.host}/people/files:{tag}"
        client.run("save", "--format", "docker-archive", "--output", f"/srv/{tag}.tar", ref)
        with tarfile.open(client.storage / f"{tag}.tar") as saved:
            (member,) = [each for each in saved if each.isreg() and each.name.endswith(".tar")]
            content = saved.extractfile(member)
            assert content
            assert f"sha256:{hashlib.sha256(content.read()).hexdigest()}" == images[tag].layers[0].diff_id


def test_a_layer_without_a_table_is_fetched_whole(
    tree: Path, images: dict[str, Image], way: Way, tmp_path: Path
) -> None:
    """The same contents in plain zstd, so that the bytes of the first test are the table's merit."""
    client = Podman(tree, tmp_path / "podman")
    for tag in ("before", "after"):
        earlier = way.answered
        assert "Retrieved partial blob" not in client.pull(f"{way.host}/people/files:{tag}", f"{USER}:{PASSWORD}")
        assert way.answered - earlier > images[tag].layers[0].size


def test_docker_pulls_it_like_any_layer(engine: Engine, images: dict[str, Image], hub: Hub, tmp_path: Path) -> None:
    """Docker checks the digest of the blob and of what it unpacks to."""
    name = engine_name(parse(f"{hub.host}/people/files"), login(tmp_path / "home", hub.host))
    found = images["after-chunked"].digest
    engine.pull(name, found, "partial-pull:test", (USER, PASSWORD), Quiet())
    assert engine.image_digest("partial-pull:test") == found
    engine.client.api.remove_image("partial-pull:test")
