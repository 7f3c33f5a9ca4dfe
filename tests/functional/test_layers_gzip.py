"""Gzip layers: each program for gzip reads them, equal layers give equal bytes, and the contents stay the same."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers import Image, Layer, gzip_layers
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.gzip_layers import compress_with_gzip
from imagegen.image.layers.image_config import image
from imagegen.image.layers.layers_document import description, read_description
from imagegen.image.layers.tar import TarWriter
from imagegen.oci.documents import GZIP_TYPE, ZSTD_TYPE, digest_of
from tests.support.errors import raises
from tests.support.layer_inputs import lock_of

BLOCK = 1 << 16
LOCK = lock_of()


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_layers, "GZIP_BLOCK", BLOCK)
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def layer(store: Store, name: str, data: bytes) -> Layer:
    with store.writer() as blob:
        sink = LayerSink(blob)
        sink.write(data)
        diff_id = sink.close()
        return Layer(ZSTD_TYPE, blob.commit(), blob.size, diff_id, name, digest_of(name.encode()), sink.unpacked)


def built(store: Store, *contents: bytes) -> Image:
    return image(LOCK, [layer(store, f"layer{number}", data) for number, data in enumerate(contents)])


def gzipped(built: Image, store: Store) -> Image:
    return compress_with_gzip(LOCK, built, store, Quiet())


def tar(*contents: bytes) -> bytes:
    stream = io.BytesIO()
    writer = TarWriter(stream)
    for number, content in enumerate(contents):
        writer.file(f"/opt/file{number}", len(content), [content])
    writer.close()
    return stream.getvalue()


def text(size: int) -> bytes:
    """Words, so that what a block knows of the one before it matters."""
    words = random.Random(7).choices([b"tensor", b"optimizer", b"gradient ", b"\n", b"\0\1\2"], k=size // 4)
    return b"".join(words)[:size]


LARGE = text(5 * BLOCK + 17)
LARGE_TAR, SMALL_TAR = tar(LARGE, b"", LARGE[:99]), tar(b"small")


def test_every_gzip_reads_the_same_contents(store: Store, tmp_path: Path) -> None:
    found = gzipped(built(store, LARGE, b"small"), store)
    for made, data in zip(found.layers, (LARGE, b"small"), strict=True):
        blob = store.read(made.digest)
        assert gzip.decompress(blob) == data
        assert digest_of(data) == made.diff_id
        assert (len(blob), made.media_type, made.unpacked) == (made.size, GZIP_TYPE, len(data))
        assert blob[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff", "no name, no time, no flags"
        assert blob.count(b"\x1f\x8b\x08\0\0\0\0\0") == 1, "one member: not every reader goes on behind the first"
        (tmp_path / "blob.gz").write_bytes(blob)
        subprocess.run(["gzip", "-t", tmp_path / "blob.gz"], check=True)
        assert subprocess.run(["gzip", "-dc", tmp_path / "blob.gz"], check=True, capture_output=True).stdout == data


@settings(max_examples=8)
@given(st.integers(0, 3), st.integers(-1, 1), st.integers(0, 1 << 32))
def test_any_size_gives_the_same_bytes_each_time(blocks: int, more: int, seed: int) -> None:
    size = max(0, blocks * BLOCK + more)
    data = (random.Random(seed).randbytes(size // 8 + 1) * 8)[:size]
    blobs = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            store = Store(Path(name))
            (made,) = gzipped(built(store, data), store).layers
            blobs.append(store.read(made.digest))
    assert blobs[0] == blobs[1]
    assert gzip.decompress(blobs[0]) == data


def test_a_block_knows_what_comes_before_it(store: Store) -> None:
    (made,) = gzipped(built(store, LARGE), store).layers
    alone = sum(len(gzip.compress(LARGE[at : at + BLOCK], 4)) for at in range(0, len(LARGE), BLOCK))
    assert made.size < alone


def test_the_image_differs_in_its_layers_blobs_alone(store: Store) -> None:
    before = built(store, LARGE_TAR, SMALL_TAR)
    after = compress_with_gzip(LOCK, before, store, Quiet())
    assert (after.config, [each.diff_id for each in after.layers]) == (
        before.config,
        [each.diff_id for each in before.layers],
    )
    assert after.digest != before.digest
    assert store.read(after.digest) == after.manifest
    assert store.read(digest_of(after.config)) == after.config


def test_what_was_compressed_once_is_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = built(store, LARGE_TAR)
    first = compress_with_gzip(LOCK, before, store, Quiet())
    with monkeypatch.context() as patch:
        patch.setattr("zlib.compressobj", None)
        assert compress_with_gzip(LOCK, before, store, Quiet()) == first
        store.path(before.layers[0].digest).unlink()
        assert compress_with_gzip(LOCK, before, store, Quiet()) == first, "the zstd blob is not needed any more"
    store.path(first.layers[0].digest).unlink()
    with raises("store-blobs-missing"):
        compress_with_gzip(LOCK, before, store, Quiet())


def test_a_registrys_layers_stay_as_they_are(store: Store) -> None:
    theirs = replace(layer(store, "base-1", b"theirs"), media_type=GZIP_TYPE, unpacked=None)
    before = image(LOCK, [theirs, layer(store, "own", SMALL_TAR)])
    after = compress_with_gzip(LOCK, before, store, Quiet())
    assert after.layers[0] == theirs
    assert after.layers[1] != before.layers[1]


def test_layers_elsewhere_need_no_layers_here(store: Store, tmp_path: Path) -> None:
    before = built(store, LARGE_TAR, SMALL_TAR)
    after = compress_with_gzip(LOCK, before, store, Quiet())
    said = read_description(description(LOCK, before, {}, after))
    assert said.layers == before.layers
    trusted = said.gzip_by_key
    assert compress_with_gzip(LOCK, before, Store(tmp_path / "empty"), Quiet(), trusted) == after


def test_a_layer_of_other_contents_is_not_taken(store: Store) -> None:
    """Under the key of a layer that came out otherwise there, it is not what the config names."""
    before = built(store, LARGE_TAR)
    after = compress_with_gzip(LOCK, before, store, Quiet())
    theirs = replace(after.layers[0], diff_id=digest_of(b"other"), digest=digest_of(b"packed"))
    records: Cache[dict[str, Any]] = Cache("gzip", dict)
    for digest in records.keys(store):
        records.forget(store, digest)
    assert compress_with_gzip(LOCK, before, store, Quiet(), {theirs.key: theirs}) == after


def test_a_layer_that_is_not_what_was_said_is_refused(store: Store) -> None:
    true = layer(store, "one", LARGE_TAR)
    lie = image(LOCK, [replace(true, diff_id=digest_of(b"other"))])
    with raises("store-layer-differs"):
        compress_with_gzip(LOCK, lie, store, Quiet())
    assert not Cache("gzip", dict).keys(store)


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:40] + b"x" + data[41:]])
def test_a_damaged_layer_is_named(store: Store, damage: Callable[[bytes], bytes]) -> None:
    before = built(store, LARGE_TAR)
    path = store.path(before.layers[0].digest)
    path.chmod(0o644)
    path.write_bytes(damage(path.read_bytes()))
    with raises("store-blobs-missing"):
        compress_with_gzip(LOCK, before, Store(store.root), Quiet())
