"""Layers in other compressions: what any gzip and zstd read, the same bytes each time, the contents of the lock."""

from __future__ import annotations

import gzip
import json
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.core.oci import GZIP_TYPE, ZSTD_TYPE, digest_of
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers import Image, Layer, image
from imagegen.image.layers.chunked import ChunkedLayer
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.image import description, read_description
from imagegen.image.layers.recompress import Recompression, recompressed
from imagegen.image.layers.tar import TarWriter
from tests.support.errors import raises
from tests.support.layer_inputs import lock_of

BLOCK = 1 << 16
LOCK = lock_of()
# Compression -> kind of its records.
RECORDS: dict[Recompression, str] = {"gzip": "gzip", "zstd:chunked": "chunked", "zstd:stargz": "chunked"}
both = pytest.mark.parametrize("compression", RECORDS)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[recompressed.__module__], "GZIP_BLOCK", BLOCK)
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
    return recompressed(LOCK, built, "gzip", store, Quiet())


def tar(*contents: bytes) -> bytes:
    parts: list[bytes] = []
    writer = TarWriter(parts.append)
    for number, content in enumerate(contents):
        writer.file(f"/opt/file{number}", len(content), [content])
    writer.close()
    return b"".join(parts)


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


def test_every_zstd_reads_the_same_contents(store: Store) -> None:
    found = recompressed(LOCK, built(store, LARGE_TAR, SMALL_TAR), "zstd:chunked", store, Quiet())
    for made, data in zip(found.layers, (LARGE_TAR, SMALL_TAR), strict=True):
        blob = store.read(made.digest)
        assert digest_of(data) == made.diff_id
        assert (len(blob), made.media_type, made.unpacked) == (made.size, ZSTD_TYPE, len(data))
        assert zstandard.ZstdDecompressor().stream_reader(blob, read_across_frames=True).read() == data


def test_the_manifest_names_the_table_of_each_layer(store: Store) -> None:
    found = recompressed(LOCK, built(store, LARGE_TAR), "zstd:chunked", store, Quiet())
    (made,) = found.layers
    assert isinstance(made, ChunkedLayer)
    (described,) = json.loads(found.manifest)["layers"]
    annotations = described.pop("annotations")
    assert described == {"mediaType": ZSTD_TYPE, "digest": made.digest, "size": made.size}
    prefix = "io.github.containers.zstd-chunked."
    offset, size, unpacked, kind = map(int, annotations[f"{prefix}manifest-position"].split(":"))
    table = store.read(made.digest)[offset:][:size]
    assert (digest_of(table), kind) == (annotations[f"{prefix}manifest-checksum"], 1)
    assert len(zstandard.ZstdDecompressor().decompress(table)) == unpacked
    assert len(annotations[f"{prefix}tarsplit-position"].split(":")) == 3


def test_stargz_snapshotter_finds_the_digest_of_the_same_table(store: Store) -> None:
    """In the annotation that containerd passes on; Podman rejects a manifest with both kinds."""
    before = built(store, LARGE_TAR)
    (chunked,) = recompressed(LOCK, before, "zstd:chunked", store, Quiet()).layers
    found = recompressed(LOCK, before, "zstd:stargz", store, Quiet())
    (described,) = json.loads(found.manifest)["layers"]
    offset, size = struct.unpack("<2Q", store.read(chunked.digest)[-40:][:16])
    table = zstandard.ZstdDecompressor().decompress(store.read(chunked.digest)[offset:][:size])
    assert described == {
        "mediaType": ZSTD_TYPE,
        "digest": chunked.digest,
        "size": chunked.size,
        "annotations": {"containerd.io/snapshot/stargz/toc.digest": digest_of(table)},
    }


@both
def test_the_image_differs_in_its_layers_blobs_alone(store: Store, compression: Recompression) -> None:
    before = built(store, LARGE_TAR, SMALL_TAR)
    after = recompressed(LOCK, before, compression, store, Quiet())
    assert (after.config, [each.diff_id for each in after.layers]) == (
        before.config,
        [each.diff_id for each in before.layers],
    )
    assert after.digest != before.digest
    assert store.read(after.digest) == after.manifest
    assert store.read(digest_of(after.config)) == after.config


@both
def test_what_was_compressed_once_is_remembered(
    store: Store, compression: Recompression, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = built(store, LARGE_TAR)
    first = recompressed(LOCK, before, compression, store, Quiet())
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[recompressed.__module__], "uncompressed", None)
        assert recompressed(LOCK, before, compression, store, Quiet()) == first
        store.path(before.layers[0].digest).unlink()
        assert recompressed(LOCK, before, compression, store, Quiet()) == first, "the zstd blob is not needed any more"
    store.path(first.layers[0].digest).unlink()
    with raises("store-blobs-missing"):
        recompressed(LOCK, before, compression, store, Quiet())


@both
def test_a_registrys_layers_stay_as_they_are(store: Store, compression: Recompression) -> None:
    theirs = replace(layer(store, "base-1", b"theirs"), media_type=GZIP_TYPE, unpacked=None)
    before = image(LOCK, [theirs, layer(store, "own", SMALL_TAR)])
    after = recompressed(LOCK, before, compression, store, Quiet())
    assert after.layers[0] == theirs
    assert after.layers[1] != before.layers[1]


def test_a_registrys_zstd_layer_gets_no_table(store: Store) -> None:
    """What its tar holds is not known before it is read: clients may reject the layer where they took it before."""
    theirs = replace(layer(store, "base-1", b"no tar that imagegen wrote"), unpacked=None)
    after = recompressed(LOCK, image(LOCK, [theirs]), "zstd:chunked", store, Quiet())
    assert after.layers == (theirs,)


@both
def test_layers_elsewhere_need_no_layers_here(store: Store, tmp_path: Path, compression: Recompression) -> None:
    before = built(store, LARGE_TAR, SMALL_TAR)
    after = recompressed(LOCK, before, compression, store, Quiet())
    said = read_description(description(LOCK, before, {}, after))
    assert said.layers == before.layers
    known = said.recompressed_by_key(compression)
    assert recompressed(LOCK, before, compression, Store(tmp_path / "empty"), Quiet(), known) == after
    for other in (other for other in RECORDS if RECORDS[other] != RECORDS[compression]):
        assert said.recompressed_by_key(other) == {}


@both
def test_a_layer_of_other_contents_is_not_taken(store: Store, compression: Recompression) -> None:
    """Under the key of a layer that came out otherwise there, it is not what the config names."""
    before = built(store, LARGE_TAR)
    after = recompressed(LOCK, before, compression, store, Quiet())
    theirs = replace(after.layers[0], diff_id=digest_of(b"other"), digest=digest_of(b"packed"))
    records: Cache[dict[str, Any]] = Cache(RECORDS[compression], dict)
    for digest in records.keys(store):
        records.forget(store, digest)
    assert recompressed(LOCK, before, compression, store, Quiet(), {theirs.key: theirs}) == after


@both
def test_a_layer_that_is_not_what_was_said_is_refused(store: Store, compression: Recompression) -> None:
    true = layer(store, "one", LARGE_TAR)
    lie = image(LOCK, [replace(true, diff_id=digest_of(b"other"))])
    with raises("store-layer-differs"):
        recompressed(LOCK, lie, compression, store, Quiet())
    assert not Cache(RECORDS[compression], dict).keys(store)


def test_a_trusted_layer_that_is_no_tar_is_refused(store: Store) -> None:
    with raises("store-layer-differs"):
        recompressed(LOCK, built(store, LARGE), "zstd:chunked", store, Quiet())


@both
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:40] + b"x" + data[41:]])
def test_a_damaged_layer_is_named(store: Store, compression: Recompression, damage: Callable[[bytes], bytes]) -> None:
    before = built(store, LARGE_TAR)
    path = store.path(before.layers[0].digest)
    path.chmod(0o644)
    path.write_bytes(damage(path.read_bytes()))
    with raises("store-blobs-missing"):
        recompressed(LOCK, before, compression, Store(store.root), Quiet())
