"""Locked wheels -> deterministic layers -> OCI image in the store."""

from imagegen.layers.assemble import assemble, compare, record_of
from imagegen.layers.image import Image, environment
from imagegen.layers.layer import Layer

__all__ = ["Image", "Layer", "assemble", "compare", "environment", "record_of"]
