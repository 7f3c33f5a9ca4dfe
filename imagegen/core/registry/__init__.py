"""Container registries: resolve an image's name, pull and push its blobs by digest.

Sources: OCI distribution-spec v1.1 and image-spec v1.1; Docker Registry v2 token authentication; Docker image manifest
version 2, schema 2.
"""

from imagegen.core.registry.image import LAYERS, Artifact, Config, Platform, RemoteImage, RemoteLayer, read_artifact
from imagegen.core.registry.pull import Repository, resolve
from imagegen.core.registry.push import BlobTotals, Moved, PushTarget
from imagegen.core.registry.reference import Reference, parse
from imagegen.core.registry.referrers import Content, Referrer

__all__ = [
    "LAYERS",
    "Artifact",
    "BlobTotals",
    "Config",
    "Content",
    "Moved",
    "Platform",
    "PushTarget",
    "Reference",
    "Referrer",
    "RemoteImage",
    "RemoteLayer",
    "Repository",
    "parse",
    "read_artifact",
    "resolve",
]
