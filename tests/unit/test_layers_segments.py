"""Segments of stored layers: a layer with copied parts is the layer that is made without any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.store import Store
from imagegen.image.layers import codec
from imagegen.image.layers.codec import LayerSink
from imagegen.image.layers.segments import SegmentedTar
from imagegen.oci.documents import ZSTD_TYPE, LayerDescriptor, digest_of

Part = dict[str, bytes]  # path -> contents

PATHS = st.lists(st.sampled_from(["opt", "site", "pkg", "bin"]), min_size=1, max_size=3).map("/".join)
PARTS = st.lists(st.dictionaries(PATHS, st.binary(max_size=700), min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.fixture(autouse=True, scope="module")
def small_frames() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "FRAME", 1 << 10)
        yield


def key_of(part: Part) -> str:
    return digest_of(repr(sorted(part.items())).encode())


def layer(store: Store, parts: Sequence[Part]) -> tuple[LayerDescriptor, list[bool]]:
    """Return a layer of these parts, and which of them were copied. Each lies below a directory of its number."""
    copied = []
    with store.writer() as blob:
        sink = LayerSink(blob)
        tar = SegmentedTar(store, sink, below=("/root",))
        for part in parts:
            copied.append(tar.copy(key_of(part)))
            if not copied[-1]:
                with tar.segment(key_of(part)):
                    for path, content in sorted(part.items()):
                        tar.file(f"/root/{path}/{key_of(part)[7:20]}", len(content), [content])
        tar.close()
        made = LayerDescriptor(ZSTD_TYPE, *_finished(sink, blob))
        tar.keep(made)
    return made, copied


def _finished(sink: LayerSink, blob: object) -> tuple[str, int, str]:
    diff_id = sink.close()
    return blob.commit(), blob.size, diff_id  # type: ignore[attr-defined]


@given(before=PARTS, after=PARTS, data=st.data())
def test_copies_are_the_bytes_that_would_be_written(
    tmp_path_factory: pytest.TempPathFactory, before: list[Part], after: list[Part], data: st.DataObject
) -> None:
    reused = data.draw(st.lists(st.sampled_from(before), unique_by=key_of, max_size=4))
    wanted = list({key_of(part): part for part in [*reused, *after]}.values())
    store, other = (Store(tmp_path_factory.mktemp("store")) for _ in range(2))
    layer(store, list({key_of(part): part for part in before}.values()))
    assert layer(store, wanted)[0] == layer(other, wanted)[0]


ONE, TWO, THREE = {"opt/site": b"1" * 3000}, {"opt/site": b"2" * 100, "opt/bin": b""}, {"opt/site": b"3" * 3000}


def test_parts_are_copied_when_a_neighbour_changes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert layer(store, [ONE, TWO])[1] == [False, False]
    assert layer(store, [THREE, TWO])[1] == [False, True]
    assert layer(store, [ONE, TWO, THREE])[1] == [True, True, False], "the first part has the directories here too"
    assert layer(store, [TWO, ONE])[1] == [False, False], "other directories have entries already"


@pytest.mark.fault(
    "Killed and damaged",
    "a layer of which a new one would copy parts is damaged or gone",
    "the parts are made of the wheels again, with the same bytes",
)
@pytest.mark.parametrize("damage", ["gone", "zeros", "a bit, at the time of the last writing"])
def test_a_lost_or_damaged_layer_gives_no_parts(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    made, _ = layer(store, [ONE, TWO])
    path = store.path(made.digest)
    status, content = path.stat(), path.read_bytes()
    path.unlink()
    if damage == "zeros":
        path.write_bytes(bytes(made.size))
    elif damage != "gone":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again, copied = layer(store, [ONE, TWO])
    assert again == made
    assert copied == [False, False]
