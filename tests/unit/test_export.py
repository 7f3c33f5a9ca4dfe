"""The file tree of an image that is exported."""

from __future__ import annotations

import gzip
import os
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagegen import export
from imagegen.core.layer_tar import Allowance
from imagegen.core.layer_tree import MemberKind, MergedTree
from imagegen.core.store import Store
from imagegen.export import Entry, read_tree
from imagegen.oci.documents import GZIP_TYPE
from tests.support.errors import raises
from tests.support.hostile_names import NAMES
from tests.support.image_layers import Files, files_layer, image, layer, member
from tests.support.timing import within

SMALL, LARGE = b"small", os.urandom(1 << 20) * 3


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def paths(entries: tuple[Entry, ...]) -> list[str]:
    return [entry.path for entry in entries if entry.kind == "file"]


def test_upper_layers_replace_and_remove_files(store: Store) -> None:
    low = files_layer(store, {"a/one": b"1", "a/two": b"2", "b/three": b"3"})
    high = files_layer(store, {"a/one": b"new", "a/two": None})
    tree = read_tree(image(low, high), store)
    assert paths(tree.entries) == ["a/one", "b/three"]
    one = next(entry for entry in tree.entries if entry.path == "a/one")
    assert (one.size, tree.origins["a/one"]) == (3, (1, 1))


def test_an_opaque_whiteout_empties_a_directory_of_lower_layers(store: Store) -> None:
    low = files_layer(store, {"a/one": b"1", "a/b/two": b"2"})
    high = layer(store, member("a", tarfile.DIRTYPE), member("a/new"), member("a/.wh..wh..opq"))
    assert paths(read_tree(image(low, high), store).entries) == ["a/new"]


def test_hard_links_are_files_of_the_same_content(store: Store) -> None:
    low = files_layer(store, {"a/one": SMALL})
    high = layer(store, member("a/two", tarfile.LNKTYPE, "a/one"))
    tree = read_tree(image(low, high), store)
    one, two = (entry for entry in tree.entries if entry.kind == "file")
    assert one.sha256 == two.sha256
    assert tree.origins == {"a/one": (0, 1), "a/two": (0, 1)}


def files_of_lower_layers(count: int) -> MergedTree[tuple[Entry, tuple[int, int]]]:
    """Return a tree of the files a/0, a/1, ..."""
    tree = MergedTree[tuple[Entry, tuple[int, int]]]()
    for path in ("a", *(f"a/{number}" for number in range(count))):
        kind = MemberKind.DIRECTORY if path == "a" else MemberKind.FILE
        tree.add(path, kind, (Entry(path, kind.name.lower(), 0o755, 0, 0, 0), (0, 0)))
    return tree


def test_hard_links_take_no_time_for_the_other_files(store: Store) -> None:
    tree = files_of_lower_layers(100_000)
    links = layer(store, *(member(f"a/link{number}", tarfile.LNKTYPE, f"a/{number}") for number in range(2000)))
    with within(1):
        export.apply_layer(links, 1, store, tree, Allowance())
    assert sum(1 for _ in tree.walk()) == 102_001


def test_whiteouts_take_no_time_for_each_of_the_other_files(store: Store) -> None:
    tree = files_of_lower_layers(50_000)
    whiteouts = layer(store, *(member(f"a/.wh.{number}") for number in range(2000)))
    with within(2):
        export.apply_layer(whiteouts, 1, store, tree, Allowance())
    assert sum(1 for _ in tree.walk()) == 48_001


def test_an_opaque_whiteout_of_the_root_empties_it(store: Store) -> None:
    low = files_layer(store, {"a/one": b"1"})
    assert paths(read_tree(image(low, layer(store, member(".wh..wh..opq"), member("new"))), store).entries) == ["new"]


def test_of_two_members_of_one_path_the_last_counts(store: Store) -> None:
    """As for engines; a hard link between them is of the first."""
    one, two = member("a"), member("a")
    one.name, two.name = "./a", "a"
    built = image(
        layer(store, one, member("link", tarfile.LNKTYPE, "a"), two, contents={"./a": b"first", "a": b"last"})
    )
    tree = read_tree(built, store)
    assert tree.origins == {"a": (0, 2), "link": (0, 0)}


def test_a_layer_of_several_gzip_members_is_read_whole(store: Store) -> None:
    """As stargz-snapshotter's converter writes layers: a member for each file."""
    tar = zstandard.decompress(store.read(files_layer(store, {"a/one": SMALL, "a/two": SMALL}).digest))
    blob = gzip.compress(tar[:1024]) + gzip.compress(tar[1024:])
    split = replace(files_layer(store, {}), media_type=GZIP_TYPE, digest=store.write(blob))
    assert paths(read_tree(image(split), store).entries) == ["a/one", "a/two"]


ESCAPES = [
    *([member(name, tarfile.DIRTYPE)] for name in NAMES),
    *([member("h", tarfile.LNKTYPE, name)] for name in NAMES),
    [member("a" * 5000)],
    [member("s", tarfile.SYMTYPE, "a" * 5000)],
]


@pytest.mark.fault(
    "Wheels",
    "an image is exported whose base names members `..`, `a/../..`, `./../x`, `/..`, whiteouts of `.` and `..`",
    "refused: no name of an export leaves its tree",
)
@pytest.mark.parametrize("odd", ESCAPES, ids=lambda odd: f"{odd[0].name[:9]} {odd[0].linkname[:9]}")
def test_names_that_leave_the_tree_are_not_exported(store: Store, odd: list[tarfile.TarInfo]) -> None:
    with raises("store-layer-unreadable"):
        read_tree(image(files_layer(store, {"a/one": SMALL}), layer(store, *odd)), store)


@pytest.mark.parametrize(
    "odd", [[member("d", tarfile.SYMTYPE, "/tmp"), member("d/file")], [member("d"), member("d/file")]]
)
def test_nothing_is_exported_behind_a_link(store: Store, odd: list[tarfile.TarInfo]) -> None:
    with raises("store-unsupported-file"):
        read_tree(image(layer(store, *odd)), store)
    with raises("store-unsupported-file"):
        read_tree(image(layer(store, odd[0]), layer(store, odd[1])), store)


def test_bombs_are_not_exported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "Allowance", partial(Allowance, members=10))
    with raises("store-layer-unreadable"):
        read_tree(image(*[files_layer(store, {f"{n}/{m}": b"" for m in range(4)}) for n in range(3)]), store)


@pytest.mark.parametrize(
    "odd",
    [
        member("a/device", tarfile.CHRTYPE),
        member("a/pipe", tarfile.FIFOTYPE),
        member("link/file"),
        member("a/hard", tarfile.LNKTYPE, "nowhere"),
    ],
    ids=lambda each: each.name,
)
def test_what_a_tree_cannot_hold_is_refused(store: Store, odd: tarfile.TarInfo) -> None:
    low = layer(store, member("a", tarfile.DIRTYPE), member("link", tarfile.SYMTYPE, "a"))
    with raises("store-unsupported-file"):
        read_tree(image(low, layer(store, odd)), store)


names = st.sampled_from(["a/x", "a/y", "b/x", "b/c/z"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(names, st.none() | st.binary(max_size=3), max_size=4), min_size=1, max_size=4))
def test_layers_apply_as_a_sequence_of_updates(store: Store, changes: list[Files]) -> None:
    expected: dict[str, bytes] = {}
    for change in changes:
        expected |= {path: content for path, content in change.items() if content is not None}
        for path in (path for path, content in change.items() if content is None):
            expected.pop(path, None)
    tree = read_tree(image(*(files_layer(store, change) for change in changes)), store)
    found = {entry.path: entry for entry in tree.entries if entry.kind == "file"}
    assert {path: entry.size for path, entry in found.items()} == {path: len(data) for path, data in expected.items()}
