"""The store keeps whole blobs or nothing, and never gives out bytes that are not their digest's."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.errors import StoreError
from imagegen.store import Store, digest_of, refs, upkeep


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put_image(store: Store, layer: bytes = b"layer") -> str:
    config, blob = store.write(b"{}"), store.write(layer)
    manifest = {"config": {"digest": config}, "layers": [{"digest": blob}]}
    return store.write(json.dumps(manifest).encode())


def age(store: Store) -> None:
    for path in (*(store.root / "blobs/sha256").iterdir(), *(store.root / "tmp").iterdir()):
        os.utime(path, (0, 0))


def test_a_blob_is_invisible_until_it_is_committed(store: Store) -> None:
    with store.writer() as writer:
        writer.write(b"half")
    assert not store.has(digest_of(b"half"))
    assert not list((store.root / "tmp").iterdir())


def test_a_blob_with_another_digest_is_not_kept(store: Store) -> None:
    with store.writer() as writer:
        writer.write(b"data")
        with pytest.raises(StoreError, match="expected"):
            writer.commit(digest_of(b"other"))
    assert list(upkeep.blobs(store)) == []


@given(position=st.integers(0, 2**22), flip=st.integers(1, 255))
def test_no_bit_can_flip_unseen(tmp_path_factory: pytest.TempPathFactory, position: int, flip: int) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    data = bytes(range(256)) * 5000
    path = store.path(store.write(data))
    path.chmod(0o644)
    damaged = bytearray(data)
    damaged[position % len(data)] ^= flip
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match="damaged"), store.open(digest_of(data)) as reader:
        for _ in reader:
            pass


def test_a_truncated_blob_is_seen_when_it_is_read(store: Store) -> None:
    digest = store.write(b"0123456789")
    store.path(digest).chmod(0o644)
    store.path(digest).write_bytes(b"01234")
    with pytest.raises(StoreError, match="damaged"):
        store.read(digest)
    assert [damage.digest for damage in upkeep.check(store, repair=True)] == [digest]
    assert not store.has(digest)


def test_a_damaged_record_counts_as_absent(store: Store) -> None:
    key = digest_of(b"key")
    store.remember("layer", key, {"a": 1})
    assert store.recall("layer", key) == {"a": 1}
    next((store.root / "records" / "layer").iterdir()).write_text("{")
    assert store.recall("layer", key) is None


def test_gc_keeps_named_images_wanted_blobs_and_what_is_young(store: Store) -> None:
    kept = put_image(store)
    refs.keep(store, "cell", kept, 1)
    wheel, old = store.write(b"wheel"), store.write(b"old")
    age(store)
    young = store.write(b"young")
    upkeep.collect(store, {*refs.images(store).values(), wheel})
    left = set(upkeep.blobs(store))
    assert left == {kept, digest_of(b"{}"), digest_of(b"layer"), wheel, young}
    assert old not in left


def test_two_builds_name_images_at_once(store: Store) -> None:
    digest = put_image(store)
    threads = [threading.Thread(target=refs.keep, args=(store, f"cell-{n}", digest, 1)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refs.images(store) == {f"cell-{n}": digest for n in range(20)}


def test_an_export_is_a_complete_layout_and_never_overwrites(store: Store, tmp_path: Path) -> None:
    digest = put_image(store)
    target = tmp_path / "out"
    refs.export(store, digest, target, "imagegen/x:y")
    index = json.loads((target / "index.json").read_text())
    assert index["manifests"][0]["digest"] == digest
    assert {f"sha256:{path.name}" for path in (target / "blobs/sha256").iterdir()} == set(upkeep.blobs(store))
    with pytest.raises(StoreError, match="not empty"):
        refs.export(store, digest, target, "imagegen/x:y")


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written") as caught:
        Store(tmp_path / "file" / "store")
    assert "XDG_CACHE_HOME" in str(caught.value)
