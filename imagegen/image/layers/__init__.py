"""Locked wheels -> deterministic layers -> OCI image in the store."""

from imagegen.image.layers.assemble import Grown, assemble, assemble_base, compare, made_here, record_of
from imagegen.image.layers.image import Image, environment, image
from imagegen.image.layers.layer import Layer
from imagegen.image.layers.recorded import keep_record, record_contradictions, recorded_image
from imagegen.image.layers.sizes import Size, layer_sizes, package_sizes, shared

__all__ = [
    "Grown",
    "Image",
    "Layer",
    "Size",
    "assemble",
    "assemble_base",
    "compare",
    "environment",
    "image",
    "keep_record",
    "layer_sizes",
    "made_here",
    "package_sizes",
    "record_contradictions",
    "record_of",
    "recorded_image",
    "shared",
]
