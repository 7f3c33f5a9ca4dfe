"""Container registries: resolve an image's name, pull and push its blobs by digest.

Sources: OCI distribution-spec v1.1 and image-spec v1.1; Docker Registry v2 token authentication; Docker image manifest
version 2, schema 2.
"""

from imagegen.core.registry.image import LAYERS, Artifact, Config, Image, Layer, Platform, read_artifact
from imagegen.core.registry.pull import Repository, resolve
from imagegen.core.registry.push import Amount, Moved, Target
from imagegen.core.registry.reference import Reference, parse
from imagegen.core.registry.referrers import Content, Referrer

__all__ = [
    "LAYERS",
    "Amount",
    "Artifact",
    "Config",
    "Content",
    "Image",
    "Layer",
    "Moved",
    "Platform",
    "Reference",
    "Referrer",
    "Repository",
    "Target",
    "parse",
    "read_artifact",
    "resolve",
]
