"""Locked wheels -> deterministic layers -> OCI image in the store."""

from imagegen.image.layers.assemble import (
    Size,
    assemble,
    assemble_base,
    built_digest,
    compare_with_record,
    ensure_layers,
    keep_record,
    layer_sizes,
    package_sizes,
    record_contradictions,
    record_of,
    recorded_image,
    shared,
    write_image,
)
from imagegen.image.layers.image import Image, environment, image
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.sources import LayerOrigin, LayerStack, RemoteLayers, resolve_layers

__all__ = [
    "Image",
    "Layer",
    "LayerOrigin",
    "LayerStack",
    "RemoteLayers",
    "Size",
    "assemble",
    "assemble_base",
    "built_digest",
    "compare_with_record",
    "ensure_layers",
    "environment",
    "image",
    "keep_record",
    "layer_sizes",
    "package_sizes",
    "record_contradictions",
    "record_of",
    "recorded_image",
    "resolve_layers",
    "shared",
    "write_image",
]
