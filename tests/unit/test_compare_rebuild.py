"""An image made again: how much is equal, which file differs first, and what is the likely cause."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from imagegen.compare.image_bytes import ReadImage
from imagegen.compare.layer_entries import entries, first_difference
from imagegen.compare.rebuild import Clue, Comparison, Level, compare, likely_cause, rebuild_image
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.image_format import EPOCH
from imagegen.core.net import Client
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import layers
from imagegen.image.layers.codec import CODEC
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.plan import LAYER_FORMAT
from imagegen.lock.model import CopiedFile, Lock, LockedCopy, WheelPatch
from imagegen.oci.documents import ZSTD_TYPE, ImageConfig, digest_of
from imagegen.oci.documents import LayerDescriptor as Described
from imagegen.oci.registry.layout_repository import LayoutRepository
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.published_image import made
from tests.support.source_builds import BUILT_WHEEL
from tests.support.tiny_lock import LOCK

PYC = b"\xa7\x0d\x0d\x0a\x01\0\0\0" + b"12345678"
SITE = "opt/venv/lib/python3.11/site-packages"
PATHS = {"a": "opt/a.py", "pyc": f"{SITE}/x/__pycache__/y.cpython-311.pyc", "record": f"{SITE}/x-1.dist-info/RECORD"}


def member(path: str, content: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    info.mtime, info.mode, info.size = EPOCH, 0o644, len(content)
    for name, value in fields.items():
        setattr(info, name, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return stream.getvalue()


A, B, C = member("opt/a.py"), member("opt/b.py"), member("opt/c.py")
ALTERED: dict[str, tuple[list[Any], list[Any], str, str]] = {
    # what is done -> published, made again, the file, words of the cause
    "time": ([member("opt/a.py", mtime=EPOCH + 9), B], [A, B], "/opt/a.py", "times are not fixed"),
    "time in a pax header": ([member("opt/a.py", mtime=EPOCH + 0.5)], [A], "/opt/a.py", "times are not fixed"),
    "content": ([A, member("opt/b.py", b"y")], [A, B], "/opt/b.py", "differ from the packages of the lock"),
    "owner": ([member("opt/a.py", uid=1000)], [A], "/opt/a.py", "owner differs"),
    "owner's name": ([member("opt/a.py", uname="me")], [A], "/opt/a.py", "owner differs"),
    "mode": ([member("opt/a.py", mode=0o664)], [A], "/opt/a.py", "another umask: 0664, rebuilt 0644"),
    "order": ([B, A], [A, B], "/opt/b.py", "in another order"),
    "a file more": ([A, B, C], [A, C], "/opt/b.py", "only the published image has it"),
    "a file less": ([A, C], [A, B, C], "/opt/b.py", "only the rebuilt image has it"),
    "a file more at the end": ([A, B], [A], "/opt/b.py", "have other files"),
    "a log": ([A, member("var/log/dpkg.log")], [A], "/var/log/dpkg.log", "a system program writes it"),
    "a cache": (
        [member("var/cache/ldconfig/aux-cache", b"1")], [member("var/cache/ldconfig/aux-cache", b"2")],
        "/var/cache/ldconfig/aux-cache", "caches and logs",
    ),
    "a whiteout": ([A, member("opt/.wh.b.py", b"")], [A], "/opt/.wh.b.py", "imagegen's layers remove no files"),
    "what an installer leaves": ([member(f"{SITE}/.lock")], [], f"/{SITE}/.lock", "an installer writes it"),
    "byte-code of something that ran": ([member(PATHS["pyc"], PYC)], [], "/" + PATHS["pyc"], "when it ran"),
    "RECORD": (
        [member(PATHS["record"], b"1")], [member(PATHS["record"], b"2")],
        "/" + PATHS["record"], "another installer wrote RECORD",
    ),
    "another Python": (
        [member(PATHS["pyc"], b"\xcb" + PYC[1:])], [member(PATHS["pyc"], PYC)],
        "/" + PATHS["pyc"], "another version of Python",
    ),
    "byte-code by time": (
        [member(PATHS["pyc"], PYC[:4] + bytes(4) + PYC[8:])], [member(PATHS["pyc"], PYC)],
        "/" + PATHS["pyc"], "by time, the rebuilt one unchecked, by hash",
    ),
    "byte-code of another source": (
        [member(PATHS["pyc"], PYC[:8] + b"87654321")], [member(PATHS["pyc"], PYC)],
        "/" + PATHS["pyc"], "from another source",
    ),
    "byte-code in another order": (
        [member(PATHS["pyc"], PYC + b"1")], [member(PATHS["pyc"], PYC + b"2")],
        "/" + PATHS["pyc"], "compiled in another order",
    ),
    "a link": (
        [member("opt/python", b"", type=tarfile.SYMTYPE, linkname="/usr/bin/python3.12")],
        [member("opt/python", b"", type=tarfile.SYMTYPE, linkname="/usr/bin/python3.11")],
        "/opt/python", "not a link to the same path",
    ),
}  # fmt: skip


def image_of(lock: Lock, store: Store, *tars: bytes) -> layers.Image:
    built = [
        Layer(ZSTD_TYPE, store.write(data), len(data), digest_of(data), name, "sha256:" + "0" * 64, len(data))
        for name, data in zip(("base", "venv"), tars, strict=False)
    ]
    return layers.image(lock, built)


def found_of(built: layers.Image) -> ReadImage:
    config = ImageConfig((), (), (), "", "")
    described = tuple(Described(each.media_type, each.digest, each.size, each.diff_id) for each in built.layers)
    names = tuple(each.name for each in built.layers)
    return ReadImage(built.digest, built.manifest, "", digest_of(built.config), built.config, config, described, names)


def beside(store: Store, there: layers.Image, here: layers.Image, lock: Lock = LOCK) -> Comparison:
    return compared(found_of(there), lock, here, store)


def compared(published: ReadImage, lock: Lock, rebuilt: layers.Image, store: Store) -> Comparison:
    source, client = LayoutRepository(store.root, "the store"), cast("Client", None)
    return compare(published, source, client, lock, rebuilt, store)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.fault(
    "Trust", "a published layer is not what its lock gives when it is built again",
    "verify --rebuild names the layer, the file and the likely cause",
)  # fmt: skip
@pytest.mark.parametrize("name", ALTERED)
def test_what_was_altered_is_found_and_explained(name: str, store: Store) -> None:
    there, here, path, words = ALTERED[name]
    same = tar(A)
    comparison = beside(store, image_of(LOCK, store, same, tar(*there)), image_of(LOCK, store, same, tar(*here)))
    assert (comparison.layer, comparison.file) == ("venv", path)
    assert words in str(comparison.cause)
    assert comparison.level is (Level.FILES if name.startswith("time") else Level.DIFFERENT)


def test_the_ladder(store: Store, golden: Golden) -> None:
    one = image_of(LOCK, store, tar(A))
    assert beside(store, one, one).level is Level.MANIFEST
    packed = gzip.compress(tar(A), mtime=0)
    layer = replace(one.layers[0], digest=store.write(packed), size=len(packed), media_type="x+gzip")
    again = layers.image(LOCK, [layer])
    found = replace(found_of(again), layers=(replace(found_of(again).layers[0], media_type=GZIP),))
    empty = Store(store.root.with_name("empty"))  # equal contents are not read
    equal = compared(found, LOCK, one, empty)
    assert equal.level == Level.CONTENTS
    recorded = replace(LOCK, record=replace(layers.record_of(one), codec="zstd 1.4"))
    golden.check(str(equal.cause), str(compared(found, recorded, one, empty).cause), codec=CODEC)
    labelled = image_of(replace(LOCK, cell="other-cpu-py311"), store, tar(A))
    other = compared(found_of(labelled), LOCK, one, empty)
    assert (other.level, "config.Labels.dev.imagegen.cell" in str(other.cause)) == (Level.LAYERS, True)
    more = image_of(LOCK, store, tar(A), tar(B))
    golden.check(beside(store, more, one).sentence)


GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"


def test_a_real_difference_is_reported_before_times(store: Store) -> None:
    """The first layer differs in a time, the second in a file: the second says how bad it is."""
    there = image_of(LOCK, store, tar(member("opt/a.py", mtime=1)), tar(member("opt/b.py", b"2")))
    here = image_of(LOCK, store, tar(A), tar(B))
    comparison = beside(store, there, here)
    assert (comparison.level, comparison.layer, comparison.fields) == (Level.DIFFERENT, "venv", ("sha256",))


def test_a_tar_that_is_written_otherwise(store: Store, golden: Golden) -> None:
    there, here = (image_of(LOCK, store, tar(A) + padding) for padding in (b"", bytes(1024)))
    golden.check(beside(store, there, here).sentence)


def test_causes_that_only_the_lock_shows(golden: Golden) -> None:
    pair = first_difference(list(_entries(tar(member("a", b"1")))), list(_entries(tar(member("a", b"2")))))
    assert pair
    golden.check(likely_cause(Clue("venv", pair, 1)), likely_cause(Clue("demo-ext", pair, LAYER_FORMAT, [BUILT_WHEEL])))
    wheel = replace(BUILT_WHEEL, build=None)
    golden.check(likely_cause(Clue("demo-ext", pair, None, [wheel])))
    inside = replace(pair, path=f"{SITE}/demo_ext/x.py")
    golden.check(likely_cause(Clue("group-1", inside, None, [replace(wheel, name="other"), wheel])))


def _entries(data: bytes) -> Iterator[Any]:
    return entries(io.BytesIO(data))


def test_what_is_no_tar() -> None:
    with raises("fetch-layer-invalid"):
        list(_entries(b"x" * 2000))


def test_an_empty_store_is_used_and_goes(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def assemble(lock: Lock, context: Context) -> layers.Image:
        empty = context.store
        assert empty.root != store.root
        assert context.settings.store == empty.root
        assert empty.root.is_relative_to(store.root)
        assert not list((empty.root / "blobs/sha256").iterdir())
        seen.append(empty.root)
        return made(lock, empty)[1]

    monkeypatch.setattr(layers, "assemble", assemble)
    lock, built = made(LOCK, store)
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    with rebuild_image(lock, store, settings, Quiet(), None, ()) as (whole, again, empty):
        assert (whole, again.digest) == (lock, built.digest)
        assert empty.has(built.digest)
    assert seen
    assert not seen[0].exists()


def test_the_projects_files_come_from_the_store_where_it_has_them(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [b"a copied file", b"a patch"]
    copied, patched = (store.write(data).removeprefix("sha256:") for data in contents)
    copy = LockedCopy("/srv/a", "a", "b", (CopiedFile("/srv/a", "0644", len(contents[0]), copied),))
    patch = WheelPatch("fix.patch", patched, len(contents[1]), "b")
    gone = WheelPatch("gone.patch", "9" * 64, 1, "b")
    first, *others = LOCK.wheels
    lock = replace(LOCK, copies=(copy,), wheels=(replace(first, patches=(patch, gone)), *others))
    found: list[bytes] = []

    def assemble(_: Lock, context: Context) -> layers.Image:
        found.extend(context.store.read(f"sha256:{digest}") for digest in (copied, patched))
        return made(LOCK, context.store)[1]

    monkeypatch.setattr(layers, "assemble", assemble)
    with rebuild_image(lock, store, Settings.from_environment({"HOME": str(tmp_path)}), Quiet(), None, ()):
        assert found == contents
