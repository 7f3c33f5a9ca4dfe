"""An image layout in a directory: what is written is read again, and hostile files neither block nor mislead."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import FetchError
from imagegen.oci.documents import digest_of, read_index
from imagegen.oci.layout import INDEX_FILE, LAYOUT_FILE, Layout, blob_name, index_entry, name_of, write_index
from tests.support.errors import raises

BLOB = b"content" * 1000
DIGEST = digest_of(BLOB)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "layout")
    layout.create()
    layout.path(DIGEST).write_bytes(BLOB)
    layout.write_index([index_entry("demo:1", DIGEST, len(BLOB))])
    return layout


def test_a_layout_that_is_written_is_read(layout: Layout) -> None:
    assert json.loads((layout.root / LAYOUT_FILE).read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    assert (layout.find("demo:1"), layout.find("demo:2")) == (DIGEST, None)
    assert layout.read(DIGEST) == BLOB == b"".join(layout.chunks(DIGEST, len(BLOB)))
    layout.create()
    assert layout.find("demo:1") == DIGEST


def test_a_blob_of_another_digest_or_size_is_refused(layout: Layout) -> None:
    for size in (len(BLOB) - 1, len(BLOB) + 1, 0):
        with raises("fetch-size-mismatch"):
            list(layout.chunks(DIGEST, size))
    layout.path(DIGEST).write_bytes(BLOB[::-1])
    with raises("fetch-digest-mismatch"):
        layout.read(DIGEST)
    with pytest.raises(OSError, match="longer"):
        layout.read(DIGEST, longest=10)


def test_a_blob_that_does_not_end_is_not_read(layout: Layout) -> None:
    endless, pipe = digest_of(b"endless"), digest_of(b"pipe")
    layout.path(endless).symlink_to("/dev/zero")
    os.mkfifo(layout.path(pipe))
    for digest in (endless, pipe):
        with raises("fetch-size-mismatch"):
            list(layout.chunks(digest, 100))
        with pytest.raises(OSError, match="regular"):
            layout.read(digest)


@given(st.text() | st.just(f"{DIGEST}\n") | st.just("sha256:../../../etc/passwd"))
def test_a_path_never_leaves_the_layout(text: str) -> None:
    with pytest.raises(FetchError):
        blob_name(text)


@pytest.mark.parametrize(
    "index", [b"", b"[]", b'{"manifests": []}', b'{"schemaVersion": 2, "manifests": {}}', b"[" * 9999]
)
def test_an_index_of_another_form_is_an_error(layout: Layout, index: bytes) -> None:
    (layout.root / INDEX_FILE).write_bytes(index)
    with raises("fetch-manifest-unsupported"):
        layout.entries()


def test_entries_of_another_form_are_left_out(layout: Layout) -> None:
    others = [1, None, {}, {"digest": "sha512:1"}, {"digest": DIGEST, "annotations": []}]
    (layout.root / INDEX_FILE).write_text(json.dumps({"schemaVersion": 2, "manifests": others}))
    assert layout.entries() == others[-1:]
    assert (name_of({"digest": DIGEST, "annotations": []}), layout.find("")) == ("", DIGEST)


@given(st.lists(st.text(), unique=True, max_size=5))
def test_an_index_is_the_same_in_any_order(names: list[str]) -> None:
    entries = [index_entry(name, DIGEST, 1) for name in names]
    data = write_index(entries)
    assert write_index(reversed(entries)) == data
    assert sorted(map(name_of, read_index(data, "it"))) == sorted(names)
