"""Trust in layer descriptions: those of the project's signers alone, and only if they are consistent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.core.types import Compression
from imagegen.image.layers import Image, Layer, RemoteLayers
from imagegen.image.layers.image_config import image
from imagegen.image.layers.layers_document import description
from imagegen.image.layers.sources import plan_layers
from imagegen.oci.documents import GZIP_TYPE, ZSTD_TYPE, digest_of
from imagegen.publish.remote_layers import AttachmentReader, find_remote_layers
from imagegen.publish.repository import RemoteRepository
from imagegen.publish.tags import COMPRESSIONS, Tags
from imagegen.trust.documents import LAYERS, Attached, Document
from tests.support.layer_inputs import lock_of

LOCK = lock_of()
KEYS = {part.key: part.name for part in plan_layers(LOCK)}


class Full:
    """A repository that has every blob; `latest` stands for one image."""

    name = "registry.example/acme/rl"

    @property
    def writer(self) -> Full:
        return self

    reader = writer

    def tags(self) -> tuple[str, ...]:
        return ("latest",)

    def images(self, digest: str) -> list[str]:
        return [digest]

    def resolve_tag(self, tag: str) -> str | None:
        return digest_of(b"the image") if tag == "latest" else None

    def present(self, blobs: Iterable[Any]) -> frozenset[str]:
        return frozenset(blob.digest for blob in blobs)


def built(word: str) -> Image:
    """An image of the lock whose layers are of this word."""
    layers = [
        Layer(
            ZSTD_TYPE, digest_of(f"zstd {word} {name}".encode()), 9, digest_of(f"{word} {name}".encode()), name, key, 9
        )
        for key, name in KEYS.items()
    ]
    return image(LOCK, layers)


def gzipped(plain: Image) -> Image:
    return image(
        LOCK,
        [replace(layer, digest=digest_of(layer.digest.encode()), media_type=GZIP_TYPE) for layer in plain.layers],
    )


def found(store: Store, compression: Compression, *said: tuple[Image, str | None]) -> RemoteLayers:
    documents = [
        Attached(Document(LAYERS, description(LOCK, each, {}, gzipped(each))), digest_of(b"artifact"), signer)
        for each, signer in said
    ]

    def read(_: RemoteRepository, digest: str) -> Any:
        assert digest == digest_of(b"the image")
        return SimpleNamespace(documents=documents)

    tags = Tags("2026.11.20-a-12345678", ("latest",))
    reader = cast("AttachmentReader", SimpleNamespace(read=read))
    return find_remote_layers(LOCK, compression, [cast("RemoteRepository", Full())], tags, reader, store, Quiet())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_untrusted_signers_are_ignored(tmp_path: Path, compression: Compression) -> None:
    honest, foreign = built("honest"), built("foreign")
    assert found(Store(tmp_path), compression, (foreign, None)).layers == {}
    taken = found(Store(tmp_path), compression, (foreign, None), (honest, "release"))
    assert set(taken.layers.values()) == set(honest.layers)


def test_another_blob_is_taken_only_with_the_layer_that_it_unpacks_to(tmp_path: Path) -> None:
    """One layer may have come out in two ways: the config must not name one, and the manifest the other."""
    one, other = built("one"), built("other")
    first = found(Store(tmp_path), "gzip", (one, "release"))
    assert {each.diff_id for each in first.recompressed.values()} == {each.diff_id for each in one.layers}
    both = found(Store(tmp_path), "gzip", (one, "release"), (other, "release"))
    assert {key: each.diff_id for key, each in both.recompressed.items()} == {
        key: each.diff_id for key, each in both.layers.items()
    }
