"""Container registries: resolve an image's name, pull and push its blobs by digest.

Sources: OCI distribution-spec v1.1; Docker Registry v2 token authentication.
"""

from imagegen.core.registry.pull import Content, Referrer, Repository, resolve
from imagegen.core.registry.push import BlobTotals, PushTarget, PushTotals
from imagegen.core.registry.reference import Reference, parse

__all__ = [
    "BlobTotals",
    "Content",
    "PushTarget",
    "PushTotals",
    "Reference",
    "Referrer",
    "Repository",
    "parse",
    "resolve",
]
