"""Images put into a store."""

from __future__ import annotations

import json

from imagegen.core.store import Store
from imagegen.oci.documents import CONFIG_TYPE, ZSTD_TYPE, Descriptor, digest_of, write_manifest


def put_image(store: Store, layer: bytes = b"layer") -> str:
    config = {"history": [{"created_by": "imagegen: demo"}], "rootfs": {"diff_ids": [digest_of(b"unpacked")]}}
    contents = {CONFIG_TYPE: json.dumps(config).encode(), ZSTD_TYPE: layer}
    described, *layers = (Descriptor(kind, store.write(data), len(data)) for kind, data in contents.items())
    return store.write(write_manifest(described, layers))
