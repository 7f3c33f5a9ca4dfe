"""Layers of images, one over the other, good ones and hostile."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import tempfile
import tracemalloc
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core import layer_tar
from imagegen.core.errors import BaseError
from imagegen.core.layer_tar import Allowance
from imagegen.core.store import Store
from imagegen.image.base import unpack as unpacking
from imagegen.image.base.unpack import inside, unpack, verify
from imagegen.oci.documents import LayerDescriptor
from tests.support.errors import raises
from tests.support.hostile_names import NAMES
from tests.support.registry_server import digest_of, packed

GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
Member = tuple[tarfile.TarInfo, bytes]


def file(name: str, data: bytes = b"x", mode: int = 0o644) -> Member:
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info, data


def member(name: str, kind: bytes, target: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info, b""


def link(name: str, target: str) -> Member:
    return member(name, tarfile.SYMTYPE, target)


def folder(name: str) -> Member:
    return member(name, tarfile.DIRTYPE)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def kept(store: Store, tar: bytes, blob: bytes | None = None, kind: str = GZIP) -> LayerDescriptor:
    blob = gzip.compress(tar, mtime=0) if blob is None else blob
    return LayerDescriptor(kind, store.write(blob), len(blob), digest_of(tar))


def tree_of(store: Store, *layers: list[Member]) -> dict[str, object]:
    """Path -> contents of a file, target of a link, None for a directory."""
    root = store.root.parent / "outside" / "root"
    root.mkdir(parents=True)
    unpack([kept(store, packed(*layer)) for layer in layers], store, root)
    assert [path.name for path in root.parent.iterdir()] == ["root"]
    found: dict[str, object] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def test_layers_lie_one_over_the_other(store: Store) -> None:
    below = [file("a/one"), file("a/two"), file("b/three"), link("c", "a"), file("d"), folder("e"), file("f/g")]
    above = [file("a/one", b"y"), file("a/.wh.two", b""), file("b/.wh..wh..opq", b""), file("b/four"), file("c"),
             folder("d"), file("e"), file(".wh.f", b"")]  # fmt: skip
    assert tree_of(store, below, above) == {
        "a": None, "a/one": b"y", "b": None, "b/four": b"x", "c": b"x", "d": None, "e": b"x"
    }  # fmt: skip


def test_a_whiteout_is_about_the_layers_below(store: Store) -> None:
    above = [file("b/new"), file("b/.wh..wh..opq", b""), file("a/new"), file(".wh.a", b""), file("b/.wh.new", b"")]
    assert tree_of(store, [file("a/old"), file("b/old")], above) == {
        "a": None, "a/new": b"x", "b": None, "b/new": b"x"
    }  # fmt: skip


def test_links_are_followed_inside_the_tree(store: Store) -> None:
    """Links are followed as by a process with the tree as its root: merged /usr, and worse."""
    found = tree_of(
        store,
        [link("bin", "usr/bin"), file("bin/sh"), link("up", "../../../usr"), file("up/local"), link("abs", "/usr"),
         file("abs/more"), member("hard", tarfile.LNKTYPE, "/bin/sh"), file("/rooted"), file("./dotted")],
    )  # fmt: skip
    assert found == {
        "bin": "usr/bin", "usr": None, "usr/bin": None, "usr/bin/sh": b"x", "up": "../../../usr", "usr/local": b"x",
        "abs": "/usr", "usr/more": b"x", "hard": b"x", "rooted": b"x", "dotted": b"x",
    }  # fmt: skip


@pytest.mark.fault(
    "Wheels", "a layer of a registry's base holds links out of the tree, devices", "nothing leaves the tree"
)
def test_nothing_is_written_outside(store: Store) -> None:
    """`tree_of` looks at what lies beside the tree."""
    (store.root.parent / "secret").write_text("s")
    found = tree_of(
        store,
        [link("l", ".."), file("l/beside3"), link("s", "../../secret"),
         file("s", b"overwritten"), link("deep", "../../../../../../.."), file("deep/beside4"), link("x", "."),
         member("null", tarfile.CHRTYPE), member("disk", tarfile.BLKTYPE), member("pipe", tarfile.FIFOTYPE)],
    )  # fmt: skip
    assert (store.root.parent / "secret").read_text() == "s"
    assert not {"null", "disk", "pipe"} & found.keys()
    assert found["s"] == b"overwritten"
    assert {"beside3", "beside4"} <= found.keys()


@pytest.mark.fault(
    "Wheels",
    "names of a base's members: `..`, `a/../..`, `./../x`, `/..`, `a//b`, whiteouts of `.` and `..`; as targets, too",
    "refused by name; nothing is clamped",
)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leaves_the_tree_is_refused(name: str, store: Store) -> None:
    (store.root.parent / "secret").write_text("s")
    root = store.root.parent / "outside" / "root"
    root.mkdir(parents=True)
    for number, odd in enumerate([member(name, tarfile.DIRTYPE), member("h", tarfile.LNKTYPE, name)]):
        with raises("base-layer-invalid"):
            unpack([kept(store, packed(file(f"before{number}"), odd))], store, root)
    assert [path.name for path in root.parent.iterdir()] == ["root"]
    assert sorted(path.name for path in root.iterdir()) == ["before0", "before1"]


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        ([link("a", "b"), link("b", "a"), file("a/x")], "links run in circles"),
        ([member("h", tarfile.LNKTYPE, "/etc/hostname")], "leads to no file"),
        ([folder("d"), member("h", tarfile.LNKTYPE, "d")], "leads to no file"),
        ([file("a" * 300)], "cannot be unpacked"),
        ([folder("d/" * 1900), file(".wh..wh..opq", b"")], "too deep"),
        ([folder("d/" * 150), link("l", "d/" * 150), file("l/" + "e/" * 60 + "f")], "folders lie in each other"),
    ],
)
def test_what_no_layer_may_hold(layer: list[Member], why: str, store: Store) -> None:
    (store.root.parent / "secret").write_text("s")
    with pytest.raises(BaseError, match=why):
        tree_of(store, layer)


def test_bombs_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "Allowance", partial(Allowance, members=100))
    with raises("base-layer-too-large"):
        tree_of(store, [file(str(number)) for number in range(200)])


def test_directories_that_a_path_implies_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "Allowance", partial(Allowance, members=100))
    with raises("base-layer-too-large"):
        tree_of(store, [file(f"{number}/" + "a/" * 30 + "b") for number in range(5)])


def test_a_layer_that_unpacks_without_end_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_tar, "SMALL", 1 << 20)
    layer = kept(store, packed(file("a")) + bytes(4 << 20))
    with raises("base-layer-too-large"):
        verify(layer, store)
    root = store.root.parent / "root"
    root.mkdir()
    sparse = tarfile.TarInfo("sparse")
    sparse.size = 1 << 40
    with raises("base-layer-too-large"):
        unpack([kept(store, sparse.tobuf() + bytes(1024))], store, root)


@pytest.mark.fault(
    "Network",
    "a layer of a registry's base: headers of gigabytes, headers about headers without end",
    "refused within bounded memory: 51 MB for a pax header of 1 GiB in a blob of 4.7 MB",
)
@pytest.mark.parametrize(
    ("kind", "size", "count"),
    [(tarfile.XHDTYPE, 64 << 20, 1), (tarfile.GNUTYPE_LONGNAME, 64 << 20, 1), (tarfile.XHDTYPE, 0, 3000)],
)
def test_headers_without_end_are_refused(kind: bytes, size: int, count: int, store: Store) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    root = store.root.parent / "root"
    root.mkdir()
    layer = kept(store, info.tobuf(tarfile.GNU_FORMAT) * count + bytes(size))
    tracemalloc.start()
    try:
        with pytest.raises(BaseError) as caught:
            unpack([layer], store, root)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.where == layer.digest
    assert not list(root.iterdir())


def test_modes_are_tame(store: Store) -> None:
    root = store.root.parent / "root"
    root.mkdir()
    unpack([kept(store, packed(file("s", mode=0o6777), file("closed", mode=0), folder("d")))], store, root)
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in ("s", "closed", "d")}
    assert modes == {"s": 0o755, "closed": 0o600, "d": 0o755}


TAR = packed(file("a", b"content"))


@pytest.mark.parametrize(
    ("blob", "kind"),
    [
        (gzip.compress(TAR, mtime=0), GZIP),
        (gzip.compress(TAR[:512], mtime=0) + gzip.compress(TAR[512:], mtime=0), GZIP),
        (zstandard.compress(TAR[:512]) + zstandard.compress(TAR[512:]), "application/vnd.oci.image.layer.v1.tar+zstd"),
        (zstandard.compress(TAR) + b"P*M\x18\x03\0\0\0toc", "application/vnd.oci.image.layer.v1.tar+zstd"),
        (TAR, "application/vnd.oci.image.layer.v1.tar"),
    ],
    ids=["gzip", "two gzips", "two frames of zstd", "zstd and a skippable frame", "plain"],
)
def test_every_compression(blob: bytes, kind: str, store: Store, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    layer = kept(store, TAR, blob, kind)
    unpack([layer], store, root)
    assert (root / "a").read_bytes() == b"content"
    verify(layer, store)


@pytest.mark.parametrize(
    "blob",
    [gzip.compress(TAR, mtime=0)[:-9], b"", gzip.compress(TAR, mtime=0) + b"junk",
     gzip.compress(b"\1" * 2000, mtime=0), TAR,
     gzip.compress(packed(file("a", b"another")), mtime=0)],
    ids=["cut", "empty", "junk behind", "no tar", "no gzip", "another tar"],
)  # fmt: skip
def test_a_layer_that_is_not_what_its_image_says(blob: bytes, store: Store, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    layer = kept(store, TAR, blob)
    for _ in range(2):  # nothing of the first try is remembered
        with pytest.raises(BaseError):
            verify(layer, store)
    with pytest.raises(BaseError):
        unpack([layer], store, root)


def test_a_damaged_blob_is_damage(store: Store, tmp_path: Path) -> None:
    layer = kept(store, TAR)
    path = store.path(layer.digest)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[5] ^= 1  # a time in gzip's header: what it unpacks to is the same
    path.write_bytes(data)
    with raises("store-damaged"):
        verify(layer, store)


names = st.lists(st.sampled_from(["a", "b", "..", ".", "", "l", ".wh.a", ".wh..wh..opq"]), min_size=1, max_size=4)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
members = st.tuples(names, kinds, names, st.booleans())


@given(st.lists(st.lists(members, max_size=8), max_size=3))
def test_no_layers_write_outside(layers: list[list[tuple[list[str], bytes, list[str], bool]]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        store, root = Store(Path(place, "store")), Path(place, "x", "root")
        root.mkdir(parents=True)
        (root.parent / "sentinel").write_text("s")
        packs = [packed(*map(_member, layer)) for layer in layers]
        with suppress(BaseError):
            unpack([kept(store, tar) for tar in packs], store, root)
        assert sorted(path.name for path in root.parent.iterdir()) == ["root", "sentinel"]
        assert (root.parent / "sentinel").read_text() == "s"


def _member(drawn: tuple[list[str], bytes, list[str], bool]) -> Member:
    name, kind, target, rooted = drawn
    path = "/".join(name)
    return file(path) if kind == tarfile.REGTYPE else member(path, kind, "/" * rooted + "/".join(target))


def test_a_path_is_looked_up_inside(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/python").symlink_to("/usr/bin/../../../bin/python3")
    assert inside(tmp_path, "/etc/python") == tmp_path / "bin/python3"
