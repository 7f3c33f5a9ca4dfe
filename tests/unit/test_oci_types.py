"""Documents of images: what is written is read again, and hostile ones are refused with a code."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import FetchError
from imagegen.oci.documents import (
    CONFIG_TYPE,
    GZIP_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    MAX_CONFIG,
    MAX_ENTRIES,
    MAX_LAYER,
    MAX_LAYERS,
    TAR_TYPE,
    ZSTD_TYPE,
    Descriptor,
    LayerDescriptor,
    Platform,
    digest_of,
    read_artifact,
    read_config,
    read_document,
    read_entry,
    read_images,
    read_index,
    read_manifest,
    write_artifact,
    write_image_index,
    write_manifest,
)

HERE = Platform("linux", "amd64")
DIGEST = digest_of(b"blob")
CONFIG, LAYER = Descriptor(CONFIG_TYPE, DIGEST, 2), Descriptor(ZSTD_TYPE, DIGEST, 3)
MANIFEST = json.loads(write_manifest(CONFIG, [LAYER]))
INDEX = {"schemaVersion": 2, "manifests": [CONFIG.as_dict() | {"mediaType": MANIFEST_TYPE,
         "platform": {"os": "linux", "architecture": "amd64"}, "annotations": {"a": "b"}}]}  # fmt: skip
IMAGE = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [DIGEST]},
         "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"], "Labels": {"a": "b"}, "User": "root"}}  # fmt: skip
ARTIFACT = json.loads(write_artifact("a/b", [("file", LAYER)], {"a": "b"}, CONFIG))

MANIFESTS = {name: Descriptor(MANIFEST_TYPE, digest_of(name.encode()), 7) for name in ("linux/amd64", "linux/arm64")}

digests = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
layers = st.builds(
    LayerDescriptor, st.sampled_from([TAR_TYPE, GZIP_TYPE, ZSTD_TYPE]), digests, st.integers(0, MAX_LAYER), digests
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(DIGEST),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def paths(value: Any, start: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [start, *(path for key, each in inner for path in paths(each, (*start, key)))]


@st.composite
def spoiled(draw: st.DrawFn, document: Any) -> bytes:
    """Return a document in which any value is another."""
    path, value = draw(st.sampled_from(paths(document))), draw(values)
    if not path:
        return json.dumps(value).encode()
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(document).encode()


@given(st.builds(Descriptor, st.just(CONFIG_TYPE), digests, st.integers(0, MAX_CONFIG)), st.lists(layers, min_size=1))
def test_a_manifest_that_is_written_is_read(config: Descriptor, found: list[LayerDescriptor]) -> None:
    data = write_manifest(config, found)
    manifest = read_manifest(data, "it")
    assert (manifest.config, [each.digest for each in manifest.layers]) == (config, [each.digest for each in found])
    assert len(manifest.blobs) == len({config.digest, *(each.digest for each in found)})
    assert write_manifest(manifest.config, manifest.layers) == data
    assert read_document(data, MANIFEST_TYPE, HERE, "it") == manifest
    diff_ids = IMAGE | {"rootfs": {"diff_ids": [each.diff_id for each in found]}}
    assert read_config(json.dumps(diff_ids).encode(), manifest, HERE, "it")[1] == tuple(found)


def code_of(read: Callable[[], object]) -> str | None:
    """Return the code of the FetchError that `read` raises; None for none."""
    try:
        read()
    except FetchError as error:
        return error.code
    return None


@given(spoiled(MANIFEST) | spoiled(INDEX) | spoiled(IMAGE) | spoiled(ARTIFACT) | st.binary(max_size=50))
def test_a_spoiled_document_gives_nothing_but_a_fetch_error(data: bytes) -> None:
    manifest = read_manifest(json.dumps(MANIFEST).encode(), "it")
    for read in (
        lambda: read_document(data, MANIFEST_TYPE, HERE, "it"),
        lambda: read_manifest(data, "it"),
        lambda: read_artifact(data, MANIFEST_TYPE, "it"),
        lambda: [read_entry(each) for each in read_index(data, "it")],
        lambda: read_config(data, manifest, HERE, "it"),
    ):
        assert code_of(read) in (None, "fetch-manifest-unsupported", "fetch-wrong-platform")


@pytest.mark.parametrize(
    "document",
    [
        MANIFEST | {"layers": []},
        MANIFEST | {"layers": [LAYER.as_dict()] * (MAX_LAYERS + 1)},
        MANIFEST | {"layers": [LAYER.as_dict() | {"size": MAX_LAYER + 1}]},
        MANIFEST | {"layers": [LAYER.as_dict() | {"digest": "sha256:../../etc/passwd"}]},
        MANIFEST | {"layers": [LAYER.as_dict() | {"size": True}]},
        MANIFEST | {"config": CONFIG.as_dict() | {"size": MAX_CONFIG + 1}},
        MANIFEST | {"manifests": []},
        MANIFEST | {"schemaVersion": 1},
        MANIFEST | {"mediaType": [MANIFEST_TYPE]},
        INDEX | {"mediaType": INDEX_TYPE, "manifests": [1]},
    ],
)
def test_a_hostile_manifest_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(FetchError) as caught:
        read_document(json.dumps(document).encode(), MANIFEST_TYPE, HERE, "it")
    assert caught.value.code == "fetch-manifest-unsupported"


def test_a_document_without_end_is_refused() -> None:
    deep = b"[" * 100_000
    long = json.dumps({"schemaVersion": 2, "manifests": [{}] * (MAX_ENTRIES + 1)}).encode()
    for data in (deep, long):
        with pytest.raises(FetchError):
            read_index(data, "it")


def test_an_index_of_images_is_decided_by_their_manifests_alone() -> None:
    data = write_image_index(MANIFESTS)
    assert write_image_index(dict(reversed(MANIFESTS.items()))) == data
    assert read_images(data, INDEX_TYPE, "it") == list(MANIFESTS.items())
    for name, manifest in MANIFESTS.items():
        assert read_document(data, INDEX_TYPE, Platform(*name.split("/")), "it") == manifest
    assert read_images(json.dumps(MANIFEST).encode(), MANIFEST_TYPE, "it") is None
    index = json.loads(data)
    index["manifests"].append(MANIFESTS["linux/amd64"].as_dict() | {"platform": {"os": "unknown"}})
    index["manifests"].append(CONFIG.as_dict())
    assert read_images(json.dumps(index).encode(), "", "it") == [*MANIFESTS.items(), ("", CONFIG)]
