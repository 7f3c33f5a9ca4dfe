"""The LAYERS document: the layers that a lock gave, as their signer describes them. Pure: bytes in, dataclasses out.

A client that trusts the signer need not build these layers: `elsewhere` is for `assemble`, `packed` for `gzipped`, and
`facts` names the scans that `inventory.carried` imports. Trust is decided elsewhere, not in this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from imagegen.core.errors import TrustError
from imagegen.core.store import digest_of
from imagegen.core.types import Digest, Strict
from imagegen.image import base
from imagegen.image.layers.codec import CODEC, GZIP, GZIP_TYPE
from imagegen.image.layers.image import Image
from imagegen.image.layers.layer import Layer
from imagegen.plan.lock import dumps, inputs_hash
from imagegen.plan.lock.model import Lock

MAX_DOCUMENT = 4 << 20  # bytes: the flagship's, with 249 wheels, has under 100 000
_MAX_LAYERS = 127  # overlay file systems end there
_MAX_FACTS = 10_000


@dataclass(frozen=True)
class Packed:
    """The image's layers in another compression: layer's key -> the same layer, and the codec's name."""

    codec: str
    layers: Mapping[str, Layer]


@dataclass(frozen=True)
class Described:
    """A parsed LAYERS document. Digests and keys are "sha256:...", `layers` from the bottom up."""

    inputs: str  # inputs hash of the lock
    lock: str  # digest of the lock as `lock.dumps` writes it: of the LOCK document
    image: str  # digest of the image's manifest
    codec: str  # of the layers that imagegen made
    base: str  # key of the base
    layers: tuple[Layer, ...]
    facts: Mapping[str, str] = field(default_factory=dict)  # key of facts -> digest of their bytes
    gzip: Packed | None = None

    @property
    def elsewhere(self) -> dict[str, Layer]:
        """The layers by key, for `assemble`; empty if they use another codec, because the image would be another."""
        return {layer.key: layer for layer in self.layers} if self.codec == CODEC else {}

    @property
    def packed(self) -> dict[str, Layer]:
        """The gzip layers by key, for `gzipped`; empty if they use another codec."""
        return dict(self.gzip.layers) if self.gzip and self.gzip.codec == GZIP else {}


def described(lock: Lock, built: Image, facts: Mapping[str, str], gzip: Image | None = None) -> bytes:
    """The document for an image that was built of a lock; `gzip` is what `gzipped` has made of it."""
    packed = None
    if gzip:
        pairs = zip(built.layers, gzip.layers, strict=True)
        packed = Packed(GZIP, {ours.key: theirs for ours, theirs in pairs if theirs.digest != ours.digest})
    return dump(
        Described(
            inputs_hash(lock),
            digest_of(dumps(lock).encode()),
            built.digest,
            CODEC,
            base.key(lock.base),
            built.layers,
            facts,
            packed,
        )
    )


def dump(said: Described) -> bytes:
    """The same bytes for the same content."""
    table = asdict(replace(said, gzip=None))
    del table["gzip"]
    if said.gzip:
        blobs = {key: {"digest": layer.digest, "size": layer.size} for key, layer in said.gzip.layers.items()}
        table["gzip"] = {"codec": said.gzip.codec, "layers": blobs}
    return json.dumps(table, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def read(data: bytes) -> Described:
    """Parse a LAYERS document. Raises TrustError for one that no imagegen has written."""
    if len(data) > MAX_DOCUMENT:
        raise _malformed(f"it has {len(data)} bytes, and at most {MAX_DOCUMENT} are read")
    try:
        document = _Document.model_validate_json(data)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _malformed(f"{place}: {first['msg']}" if place else first["msg"]) from invalid
    layers = tuple(Layer(**dict(layer)) for layer in document.layers)
    by_key = {layer.key: layer for layer in layers}
    if len(by_key) != len(layers):
        raise _malformed("two of its layers have one key")
    packed = None
    if document.gzip:
        if unknown := document.gzip.layers.keys() - by_key.keys():
            raise _malformed(f"gzip.layers: {min(unknown)} is the key of none of its layers")
        blobs = document.gzip.layers.items()
        packed = Packed(
            document.gzip.codec,
            {
                key: replace(by_key[key], digest=blob.digest, size=blob.size, media_type=GZIP_TYPE)
                for key, blob in blobs
            },
        )
    said = (document.inputs, document.lock, document.image, document.codec, document.base)
    return Described(*said, layers, document.facts, packed)


def _malformed(why: str) -> TrustError:
    fix = "if imagegen attached it, a newer one may have: use that; else attach it again, by publishing the image"
    return TrustError(
        "the layers attached to an image are described in a way that is not known",
        code="trust-layers-unreadable",
        why=why,
        fix=fix,
    )


_Text = Annotated[str, Field(pattern=r"^[ -~]{1,200}\z")]
_Size = Annotated[int, Field(ge=0, le=64 << 30)]
_MediaType = Literal[
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
]


class _Layer(Strict):
    name: _Text
    key: Digest
    diff_id: Digest
    digest: Digest
    size: _Size
    unpacked: Annotated[int, Field(ge=0, le=1 << 40)] | None
    media_type: _MediaType


class _Blob(Strict):
    digest: Digest
    size: _Size


class _Packed(Strict):
    codec: _Text
    layers: dict[Digest, _Blob]


class _Document(Strict):
    inputs: Digest
    lock: Digest
    image: Digest
    codec: _Text
    base: Digest
    layers: Annotated[tuple[_Layer, ...], Field(min_length=1, max_length=_MAX_LAYERS)]
    facts: Annotated[dict[Digest, Digest], Field(max_length=_MAX_FACTS)]
    gzip: _Packed | None = None
