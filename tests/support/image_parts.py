"""Layers of an image as parts that are loaded early."""

from __future__ import annotations

import json

from imagegen.core.store import Store
from imagegen.image.layers import Image, Layer
from imagegen.oci.documents import ZSTD_TYPE, digest_of


def part_of(store: Store, digest: str, layers: int) -> Image:
    """The bottom of an image of the store, as it would be offered while the rest is being made."""
    manifest = json.loads(store.read(digest))
    config = json.loads(store.read(manifest["config"]["digest"]))
    config["rootfs"]["diff_ids"] = config["rootfs"]["diff_ids"][:layers]
    config_bytes = json.dumps(config).encode()
    manifest["layers"] = manifest["layers"][:layers]
    manifest["config"] |= {"digest": digest_of(config_bytes), "size": len(config_bytes)}
    manifest_bytes = json.dumps(manifest).encode()
    made = tuple(Layer(ZSTD_TYPE, layer["digest"], layer["size"], "", "x", "") for layer in manifest["layers"])
    return Image(digest_of(manifest_bytes), manifest_bytes, config_bytes, made)
