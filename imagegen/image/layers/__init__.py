"""Locked wheels -> deterministic layers -> OCI image in the store."""

from imagegen.image.layers.assembly import (
    assemble,
    assemble_base,
    built_digest,
    compare_with_record,
    ensure_layers,
    keep_record,
    record_contradictions,
    record_of,
    recorded_image,
    write_image,
)
from imagegen.image.layers.image_config import Image, environment, image
from imagegen.image.layers.layer import Layer, LayerOrigin, LayerSource
from imagegen.image.layers.sizes import Size, layer_sizes, package_sizes, shared
from imagegen.image.layers.sources import LayerStack, RemoteLayers, ResolvedLayers, resolve_layers
