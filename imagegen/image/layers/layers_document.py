"""The LAYERS document of an image, for clients that trust its signer.

Such a client need not build these layers: `layers_by_key` is for `assemble`, `gzip_by_key` for
`compress_with_gzip`, and `facts` names the scans that `image.inventory.scans` imports. `trust` decides about
trust.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from imagegen.core.errors import TrustError
from imagegen.core.store.cache import StoredBlob
from imagegen.core.types import Digest
from imagegen.image import base
from imagegen.image.layers.codec import CODEC, GZIP
from imagegen.image.layers.layer import Layer, PrintableName
from imagegen.lock import dumps_attached, inputs_hash
from imagegen.lock.model import Lock
from imagegen.oci.documents import GZIP_TYPE, MAX_LAYERS, digest_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter
from imagegen.image.layers.image_config import Image

MAX_DOCUMENT = 4 << 20  # bytes; the flagship's, with 249 wheels, has under 100 000
_MAX_FACTS = 10_000


@dataclass(frozen=True)
class CompressedBlobs:
    """The blobs of the image's layers in another compression, by the layers' keys, and the codec's name."""

    codec: PrintableName
    layers: Mapping[Digest, StoredBlob]


@dataclass(frozen=True)
class LayersDocument:
    """A LAYERS document. Digests and keys are "sha256:...", `layers` from the bottom up."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    inputs: Digest  # inputs hash of the lock
    lock: Digest  # digest of the lock as `lock.dumps_attached` writes it: of the LOCK document
    image: Digest  # digest of the image's manifest
    codec: PrintableName  # of the layers that imagegen made
    base: Digest  # key of the base
    layers: tuple[Layer, ...]
    facts: Mapping[Digest, Digest]  # key of facts -> digest of their bytes
    gzip: CompressedBlobs | None = None
    chunked: Any = None  # written by earlier versions, which published layers as zstd:chunked; ignored

    @property
    def layers_by_key(self) -> dict[str, Layer]:
        """The layers by key, for `assemble`; empty if they use another codec, because the image would be another."""
        return {layer.key: layer for layer in self.layers} if self.codec == CODEC else {}

    @property
    def gzip_by_key(self) -> dict[str, Layer]:
        """The gzip layers by key, for `compress_with_gzip`; empty if another codec compressed them."""
        if self.gzip is None or self.gzip.codec != GZIP:
            return {}
        layers = {layer.key: layer for layer in self.layers}
        return {
            key: replace(layers[key], digest=blob.digest, size=blob.size, media_type=GZIP_TYPE)
            for key, blob in self.gzip.layers.items()
        }


def description(lock: Lock, built: Image, facts: Mapping[str, str], other: Image | None = None) -> bytes:
    """Return the document for the image that was built from a lock; `other` is the same image with gzip layers."""
    pairs = zip(built.layers, other.layers, strict=True) if other else ()
    gzip = {packed.key: StoredBlob(packed.digest, packed.size) for layer, packed in pairs if packed != layer}
    return dump(
        LayersDocument(
            inputs_hash(lock),
            digest_of(dumps_attached(lock).encode()),
            built.digest,
            CODEC,
            base.key(lock.base),
            built.layers,
            facts,
            CompressedBlobs(GZIP, gzip) if gzip else None,
        )
    )


def dump(document: LayersDocument) -> bytes:
    """Serialise the document; equal documents give equal bytes."""
    table = asdict(document)
    for name in ("gzip", "chunked"):
        if table[name] is None:
            del table[name]
    return json.dumps(table, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def read_description(data: bytes) -> LayersDocument:
    """Parse a LAYERS document. Raises TrustError for one that no imagegen has written."""
    if len(data) > MAX_DOCUMENT:
        raise _malformed(f"it has {len(data)} bytes, and at most {MAX_DOCUMENT} are read")
    from pydantic import ValidationError  # late, here and below: few commands read such a document

    try:
        document = _adapter().validate_json(data)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"])
        raise _malformed(f"{location}: {first['msg']}" if location else first["msg"]) from invalid
    if not 0 < len(document.layers) <= MAX_LAYERS:
        raise _malformed(f"it has {len(document.layers)} layers, and an image has 1 to {MAX_LAYERS}")
    if len(document.facts) > _MAX_FACTS:
        raise _malformed(f"it has {len(document.facts)} facts, and at most {_MAX_FACTS} are read")
    keys = {layer.key for layer in document.layers}
    if len(keys) != len(document.layers):
        raise _malformed("two of its layers have one key")
    if docker := [layer.media_type for layer in document.layers if layer.media_type != layer.oci_type]:
        raise _malformed(f"a layer has the media type {docker[0]}")
    if document.gzip and (unknown := document.gzip.layers.keys() - keys):
        raise _malformed(f"gzip.layers: {min(unknown)} is the key of none of its layers")
    return document


@cache
def _adapter() -> TypeAdapter[LayersDocument]:
    from pydantic import TypeAdapter

    return TypeAdapter(LayersDocument)


def _malformed(why: str) -> TrustError:
    fix = "if imagegen attached it, a newer one may have: use that; else attach it again, by publishing the image"
    return TrustError(
        "the layers attached to an image are described in a way that is not known",
        code="trust-layers-unreadable",
        why=why,
        fix=fix,
    )
