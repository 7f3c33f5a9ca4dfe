"""Locked wheels -> deterministic layers -> OCI image in the store."""

from imagegen.layers.assemble import assemble, assemble_base, compare, record_of
from imagegen.layers.image import Image, environment
from imagegen.layers.layer import Layer

__all__ = ["Image", "Layer", "assemble", "assemble_base", "compare", "environment", "record_of"]
