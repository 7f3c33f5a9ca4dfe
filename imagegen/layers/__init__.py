"""Locked wheels -> deterministic layers -> OCI image in the store."""

from imagegen.layers.assemble import Grown, assemble, assemble_base, compare, made_here, record_of
from imagegen.layers.image import Image, environment, image
from imagegen.layers.layer import Layer

__all__ = [
    "Grown",
    "Image",
    "Layer",
    "assemble",
    "assemble_base",
    "compare",
    "environment",
    "image",
    "made_here",
    "record_of",
]
