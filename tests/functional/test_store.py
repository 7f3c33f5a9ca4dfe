"""The store keeps whole blobs or nothing, and never gives out bytes that are not their digest's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import StoreError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store, disk, images, upkeep
from imagegen.core.store.cache import Cache, digest_of_results
from imagegen.oci.documents import digest_of
from tests.support.errors import raises
from tests.support.store_images import put_image


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def damage(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


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
        with raises("store-digest-mismatch"):
            writer.commit(digest_of(b"other"))
    assert list(upkeep.blobs(store)) == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str]:
    """A store and its blob of more than one chunk, which may be written to."""
    store = Store(tmp_path_factory.mktemp("large"))
    digest = store.write(bytes(range(256)) * 5000)
    store.path(digest).chmod(0o644)
    return store, digest


@given(position=st.integers(0, 256 * 5000 - 1), flip=st.integers(1, 255))
def test_no_bit_can_flip_unseen(large: tuple[Store, str], position: int, flip: int) -> None:
    store, digest = large
    with store.path(digest).open("r+b") as file:
        file.seek(position)
        file.write(bytes([position % 256 ^ flip]))
    try:
        with raises("store-damaged"):
            store.verify(digest, keep=True)
    finally:
        with store.path(digest).open("r+b") as file:
            file.seek(position)
            file.write(bytes([position % 256]))
    store.verify(digest)


def test_a_truncated_blob_is_seen_when_it_is_read(store: Store) -> None:
    digest = store.write(b"0123456789")
    damage(store.path(digest), b"01234")
    with raises("store-damaged"):
        store.read(digest)
    assert not store.has(digest)


@pytest.mark.fault(
    "Killed and damaged",
    "a bit flips in a blob of the store",
    "seen whenever the blob is read: named, removed, and made or fetched again by the next build",
)
def test_what_is_damaged_goes_when_it_is_read(store: Store) -> None:
    digest = store.write(b"0123456789")
    damage(store.path(digest), b"0123456788")
    assert not Store(store.root).intact(digest, 10)
    assert not store.path(digest).exists()
    assert store.intact(store.write(b"0123456789"), 10)


def test_a_blob_is_read_again_only_after_it_was_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    verify = Store.verify
    monkeypatch.setattr(Store, "verify", lambda self, digest: (read.append(digest), verify(self, digest)))
    digest = store.write(b"0123456789")
    assert Store(store.root).intact(digest, 10)
    assert store.has(digest)  # marks it as used
    assert store.intact(digest, 10)
    assert not read
    damage(store.path(digest), b"0123456789")  # the same bytes, by another program
    assert store.intact(digest, 10)
    assert store.intact(digest, 10)
    assert read == [digest]
    damage(store.path(digest), b"0123456788")
    assert not store.intact(digest, 10)


def test_a_blob_that_was_made_again_meanwhile_stays(store: Store) -> None:
    digest = store.write(b"0123456789")
    damage(store.path(digest), b"damaged")
    with store.open(digest) as reader:
        store.write(b"0123456789")
        with raises("store-damaged"):
            reader.read()
    assert store.intact(digest, 10)


@pytest.mark.fault(
    "Killed and damaged",
    "a record of the store is cut off, has a bit flipped, or lies where another one belongs",
    "it counts as absent: its content is built again",
)
def test_a_record_counts_only_as_it_was_written(store: Store) -> None:
    key, other = digest_of(b"key"), digest_of(b"other")
    Cache("layer", dict).put(store, key, {"a": 1})
    Cache("layer", dict).put(store, other, {"a": 2})
    assert Cache("layer", dict).get(store, key) == {"a": 1}
    path, foreign = (store.root / "records" / "layer" / each.removeprefix("sha256:") for each in (key, other))
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position])
        assert Cache("layer", dict).get(store, key) is None
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert Cache("layer", dict).get(store, key) is None
    path.write_bytes(foreign.read_bytes())
    assert Cache("layer", dict).get(store, key) is None
    path.write_text('{"digest": "without its seal"}')
    assert Cache("layer", dict).get(store, key) is None


def test_an_index_that_is_damaged_says_what_to_do(store: Store) -> None:
    for text in ("{", "[]", '{"manifests": [{}]}'):
        (store.root / "index.json").write_text(text)
        with raises("store-index-damaged"):
            images.images(store)


def test_an_image_that_another_program_put_here_stays(store: Store) -> None:
    digest = put_image(store)
    entry = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 1}
    (store.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    images.keep(store, "cell", digest, 1)
    assert images.images(store) == {digest: digest, "cell": digest}


@pytest.mark.fault(
    "Shared store",
    "a build decides to use an old file at the moment when `store gc` looks at it",
    "it is kept: whatever a build has decided to use counts as used from then on",
)
def test_what_a_build_has_just_decided_to_use_is_not_collected(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.write(b"wheel")
    age(store)
    found: list[bool] = []

    def beside(path: Path, now: float) -> bool:
        """The moment between looking and removing, in which a build comes."""
        unused = real(path, now)
        if not found:
            build = threading.Thread(target=lambda: found.append(store.has(digest)))
            build.start()
            build.join(0.3)
        return unused

    real = upkeep.is_unused
    monkeypatch.setattr(upkeep, "is_unused", beside)
    upkeep.collect(store, ())
    while not found:
        time.sleep(0.01)
    assert found == [store.path(digest).exists()]
    digest = store.write(b"wheel")
    age(store)
    assert store.has(digest)
    upkeep.collect(store, ())
    assert store.has(digest)


@pytest.mark.fault(
    "Killed and damaged",
    "a build is killed while it writes a blob, unpacks a base or collects",
    "what was not finished goes when the store is next opened; downloads stay, to be resumed",
)
def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(store: Store) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from imagegen.core.store import Store
store = Store(Path(sys.argv[1]))
with store.writer() as writer, store.temporary_directory("rootfs") as room:
    writer.write(b"half")
    (room / "file").write_text("half")
    (store.root / "tmp" / "part-0").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with store.writer() as writer, store.temporary_directory("base") as room:
        subprocess.run([sys.executable, "-c", program, str(store.root)], check=False)
        left = {path.name.partition("-")[0] for path in (store.root / "tmp").iterdir()}
        assert left == {"blob", "rootfs", "part", "base"}
        Store(store.root)
        left = sorted(path.name.partition("-")[0] for path in (store.root / "tmp").iterdir())
        assert left == ["base", "blob", "part"]
        assert room.is_dir()
        writer.write(b"whole")
        assert store.has(writer.commit())
    assert [path.name for path in (store.root / "tmp").iterdir()] == ["part-0"]
    age(store)
    upkeep.collect(store, ())
    assert not list((store.root / "tmp").iterdir())


def test_a_tree_loses_its_name_before_it_is_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is killed half-way leaves no tree behind that a build would take for a whole one."""
    tree = store.root / "rootfs" / ("0" * 64)
    (tree / "usr").mkdir(parents=True)
    os.utime(tree, (0, 0))
    named: list[bool] = []
    real = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **kw: (named.append(tree.exists()), real(path, **kw)))
    upkeep.collect(store, ())
    assert named == [False]
    assert not list((store.root / "tmp").iterdir())


def test_gc_keeps_named_images_wanted_blobs_and_what_is_young(store: Store) -> None:
    kept = put_image(store)
    images.keep(store, "cell", kept, 1)
    wheel, old = store.write(b"wheel"), store.write(b"old")
    age(store)
    young = store.write(b"young")
    upkeep.collect(store, {*images.images(store).values(), wheel})
    left = set(upkeep.blobs(store))
    assert left == {*images.parts(store, kept), wheel, young} - {digest_of(b"unpacked")}
    assert old not in left


def test_two_builds_name_images_at_once(store: Store) -> None:
    digest = put_image(store)
    threads = [threading.Thread(target=images.keep, args=(store, f"cell-{n}", digest, 1)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert images.images(store) == {f"cell-{n}": digest for n in range(20)}


def test_an_export_is_a_complete_layout_and_never_overwrites(store: Store, tmp_path: Path) -> None:
    digest = put_image(store)
    target = tmp_path / "out"
    images.export(store, digest, target, "imagegen/x:y")
    index = json.loads((target / "index.json").read_text())
    assert index["manifests"][0]["digest"] == digest
    assert {f"sha256:{path.name}" for path in (target / "blobs/sha256").iterdir()} == set(upkeep.blobs(store))
    with raises("store-output-not-empty"):
        images.export(store, digest, target, "imagegen/x:y")
    with raises("store-output-is-file"):
        images.export(store, digest, target / "index.json", "imagegen/x:y")


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises("store-unwritable") as caught:
        Store(tmp_path / "file" / "store")
    assert "XDG_CACHE_HOME" in str(caught.value)


def test_two_builds_that_make_the_store_lose_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = tmp_path / "store", []

    def build() -> None:
        store = Store(root)
        images.keep(store, "cell", put_image(store), 1)

    def interrupted(store: Store, name: Path | str, data: bytes) -> None:
        if name == "index.json" and not other:
            other.append(threading.Thread(target=build))
            other[0].start()
            other[0].join(0.5)  # it gets as far as it can before this one goes on
        real(store, name, data)

    real = Store.replace
    monkeypatch.setattr(Store, "replace", interrupted)
    store = Store(root)
    other[0].join()
    assert set(images.images(store)) == {"cell"}


def test_upkeep_goes_on_beside_builds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a build come and go between being listed and being looked at."""
    old = store.write(b"old")
    age(store)
    listed, walked = Path.iterdir, os.walk
    gone = store.root / "tmp" / "blob-gone"
    monkeypatch.setattr(Path, "iterdir", lambda path: [*listed(path), gone])
    monkeypatch.setattr(os, "walk", lambda top: [*walked(top), (str(gone.parent), [], [gone.name])])
    assert upkeep.sizes(store).total > 0
    assert upkeep.collect(store, ()) > 0
    assert not store.has(old)


def test_what_is_no_blob_is_left_alone(store: Store) -> None:
    foreign = store.root / "blobs/sha256/.nfs0001"
    foreign.write_bytes(b"")
    age(store)
    assert upkeep.check(store, Quiet(), repair=True) == []
    upkeep.collect(store, ())
    assert foreign.exists()


def test_a_failed_replacement_leaves_nothing(store: Store) -> None:
    (store.root / "index.json").unlink()
    (store.root / "index.json").mkdir()
    with raises("store-unusable"):
        store.replace("index.json", b"{}")
    assert not list((store.root / "tmp").iterdir())


def test_damage_is_not_exported(store: Store, tmp_path: Path) -> None:
    digest = put_image(store)
    path = store.path(digest_of(b"layer"))
    damage(path, b"LAYER")
    store = Store(store.root)  # another process, which did not write it itself
    with raises("store-blobs-missing"):
        images.export(store, digest, tmp_path / "out", "imagegen/x:y")
    assert not path.exists(), "what is damaged goes, so that the same command makes it again"
    with raises("store-blobs-missing"):
        images.export(store, digest, tmp_path / "out", "imagegen/x:y")
    assert not list(tmp_path.glob("*out*"))


def test_an_output_that_cannot_be_written_is_not_the_stores_fault(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises("store-unwritable") as caught:
        images.export(store, put_image(store), tmp_path / "file" / "out", "imagegen/x:y")
    assert "XDG_CACHE_HOME" not in str(caught.value)
    assert str(tmp_path / "file" / "out") in str(caught.value)


@pytest.mark.fault(
    "Disk",
    "the disk of an output (`render -o`, `build --output`, `export`, `report`) is full",
    "says so; no directory stays that was made for it",
)
@pytest.mark.parametrize("write", [images.filling, images.filling_file, disk.made_for])
def test_no_empty_directory_stays_of_a_failed_output(write: Any, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for output in (tmp_path / "a" / "b" / "out", tmp_path / "there" / "out"):
        with pytest.raises((StoreError, OSError)), write(output):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    with suppress(KeyboardInterrupt), write(tmp_path / "a" / "b" / "out"):
        (tmp_path / "a" / "another").write_text("of another run")
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "another", "there"]


def test_an_export_into_the_empty_directory_where_one_stands(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    images.export(store, put_image(store), Path(), "imagegen/x:y")
    assert (here / "oci-layout").exists()


def test_a_lock_that_cannot_be_had_says_so(store: Store) -> None:
    shutil.rmtree(store.root / "locks")
    (store.root / "locks").write_text("")
    with raises("store-unwritable"), store.lock("x"):
        pass


def test_who_waits_for_a_lock_can_say_so(store: Store) -> None:
    order: list[str] = []
    reported = threading.Event()

    class Reporter(Quiet):
        def say(self, text: str) -> None:
            order.append(text)
            reported.set()

    def second() -> None:
        with store.lock("x", (Reporter(), "waiting")):
            order.append("second")

    with ThreadPoolExecutor(1) as other:
        with store.lock("x", (Reporter(), "not for the first")):
            waiting = other.submit(second)
            assert reported.wait(30)
            order.append("first")
        waiting.result(30)
    assert order == ["waiting", "first", "second"]


def test_a_directory_that_is_swept_away_before_it_is_locked_is_made_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.mkdtemp
    names: list[str] = []

    def swept(**where: Any) -> str:
        names.append(made(**where))
        if len(names) == 1:
            Path(names[0]).rmdir()  # as another process does that opens the store just now
        return names[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with store.temporary_directory("work") as path:
        assert path.is_dir()
    assert len(names) == 2


@pytest.mark.fault(
    "Shared store", "a pipe, a directory or a device where a blob should be", "reported as damage without waiting"
)
@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, partial(os.symlink, "/dev/zero")], ids=["pipe", "folder", "link"]
)
def test_what_is_no_file_is_damage(make: Callable[[Path], None], tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = digest_of(b"x")
    make(store.path(digest))
    os.mkfifo(tmp_path / "tmp" / "blob-left")
    Store(tmp_path)  # sweeps
    assert not (tmp_path / "tmp" / "blob-left").exists()
    assert upkeep.check(store, Quiet(), repair=False) == [digest]


def test_each_record_gives_another_digest_of_results(store: Store) -> None:
    smoke, seen = Cache("smoke", dict), [digest_of_results(store, "smoke")]
    for key, value in ((b"a", 1), (b"b", 1), (b"a", 22)):
        smoke.put(store, digest_of(key), {"a": value})
        seen.append(digest_of_results(store, "smoke"))
        Cache("layer", dict).put(store, digest_of(key), {"a": value})
        assert digest_of_results(store, "smoke") == seen[-1]
    assert len(set(seen)) == 4
