"""Container registries: resolve an image's name, pull and push its blobs by digest.

Sources: OCI distribution-spec v1.1; Docker Registry v2 token authentication.
"""

from imagegen.oci.registry.push import BlobTotals, PushTarget, PushTotals
from imagegen.oci.registry.reference import Reference, parse
from imagegen.oci.registry.referrers import Content, Referrer
from imagegen.oci.registry.repository import Repository, resolve
