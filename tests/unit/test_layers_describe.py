"""The LAYERS document says what it was given, and nothing else is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.errors import TrustError
from imagegen.core.store.cache import StoredBlob
from imagegen.image.layers import Layer
from imagegen.image.layers.codec import CODEC, GZIP
from imagegen.image.layers.layers_document import MAX_DOCUMENT, CompressedBlobs, LayersDocument, dump, read_description
from imagegen.oci.documents import GZIP_TYPE, ZSTD_TYPE

ONE, TWO = (f"sha256:{digit * 64}" for digit in "12")
DIGESTS = st.integers(0, 1 << 256).map(lambda number: f"sha256:{number % (1 << 256):064x}")
NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30)
SIZES = st.integers(0, 64 << 30)


@st.composite
def documents(draw: Callable[[st.SearchStrategy[Any]], Any]) -> LayersDocument:
    keys = draw(st.lists(DIGESTS, min_size=1, max_size=5, unique=True))
    types = st.sampled_from([ZSTD_TYPE, GZIP_TYPE, "application/vnd.oci.image.layer.v1.tar"])
    layers = tuple(
        draw(st.builds(Layer, types, DIGESTS, SIZES, DIGESTS, NAMES, st.just(key), st.none() | SIZES)) for key in keys
    )
    others = {key: StoredBlob(draw(DIGESTS), draw(SIZES)) for key in keys if draw(st.booleans())}
    packed = draw(st.none() | st.just(CompressedBlobs(GZIP, others)))
    facts = draw(st.dictionaries(DIGESTS, DIGESTS, max_size=3))
    texts = (draw(each) for each in (DIGESTS, DIGESTS, DIGESTS, NAMES, DIGESTS))
    return LayersDocument(*texts, layers, facts, packed)  # type: ignore[call-arg]


@given(documents())
def test_what_is_written_is_read(said: LayersDocument) -> None:
    assert read_description(dump(said)) == said
    assert dump(read_description(dump(said))) == dump(said)


def sample() -> LayersDocument:
    layer = Layer(ZSTD_TYPE, ONE, 7, ONE, "torch", ONE, 9)
    gzip = CompressedBlobs(GZIP, {ONE: StoredBlob(TWO, 8)})
    return LayersDocument(ONE, TWO, ONE, CODEC, ONE, (layer,), {ONE: TWO}, gzip)


def test_layers_of_another_codec_are_not_reused() -> None:
    said = sample()
    assert said.gzip
    assert list(said.layers_by_key) == [ONE]
    assert replace(said, codec="zstd 1.4").layers_by_key == {}
    layer = said.layers[0]
    assert said.gzip_by_key == {ONE: replace(layer, digest=TWO, size=8, media_type=GZIP_TYPE)}
    for gzip in (None, replace(said.gzip, codec="zlib 2")):
        assert replace(said, gzip=gzip).gzip_by_key == {}


def test_zstd_chunked_blobs_that_earlier_versions_describe_are_ignored() -> None:
    table = json.loads(dump(sample())) | {"chunked": {"codec": "zstd:chunked", "layers": {ONE: {"digest": TWO}}}}
    document = read_description(json.dumps(table).encode())
    assert (document.layers, document.gzip) == (sample().layers, sample().gzip)


def changed(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table.update(values)


def layer(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["layers"][0].update(values)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed(more=1), "more: Unexpected keyword"),
        (changed(inputs="sha256:1"), "inputs: String should match"),
        (changed(lock=None), "lock: Input should be a valid string"),
        (changed(codec="a\nb"), "codec: String should match"),
        (changed(layers=[]), "it has 0 layers"),
        (changed(layers=[{}] * 200), "layers"),
        (changed(facts={"x": ONE}), "facts.x"),
        (changed(facts={f"sha256:{n:064}": ONE for n in range(10_001)}), "it has 10001 facts"),
        (changed(facts={ONE: 3}), f"facts.{ONE}"),
        (changed(gzip={"codec": "x"}), "gzip.layers: Field required"),
        (changed(gzip={"codec": "x", "layers": {TWO: {"digest": ONE, "size": 1}}}), f"gzip.layers: {TWO} is the key"),
        (layer(size=-1), "layers.0.size: Input should be greater"),
        (layer(size=True), "layers.0.size: Input should be a valid integer"),
        (layer(size=1.0), "layers.0.size: Input should be a valid integer"),
        (layer(size=1 << 80), "layers.0.size"),
        (layer(digest=ONE + "\n"), "layers.0.digest: String should match"),
        (layer(digest=ONE.upper()), "layers.0.digest: String should match"),
        (layer(name=""), "layers.0.name"),
        (layer(media_type="application/zip"), "layers.0.media_type: String should match"),
        (lambda table: table["layers"].append(dict(table["layers"][0])), "two of its layers have one key"),
        (lambda table: table.pop("base"), "base: Field required"),
    ],
)
def test_what_no_imagegen_writes_is_refused(change: Callable[[dict[str, Any]], Any], why: str) -> None:
    table = json.loads(dump(sample()))
    change(table)
    with pytest.raises(TrustError) as caught:
        read_description(json.dumps(table).encode())
    assert str(caught.value.why).startswith(why)
    assert caught.value.fix


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"a":' * 2000, b"[" * 100_000, b" " * (MAX_DOCUMENT + 1)],
    ids=["nothing", "cut", "list", "null", "no-utf-8", "deep", "deeper", "large"],
)
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(TrustError):
        read_description(data)
