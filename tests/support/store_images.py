"""Images put into a store."""

from __future__ import annotations

import json

from imagegen.core.store import Store, digest_of


def put_image(store: Store, layer: bytes = b"layer") -> str:
    config = {"history": [{"created_by": "imagegen: demo"}], "rootfs": {"diff_ids": [digest_of(b"unpacked")]}}
    contents = [json.dumps(config).encode(), layer]
    described = [{"digest": store.write(data), "size": len(data)} for data in contents]
    return store.write(json.dumps({"config": described[0], "layers": [described[1]]}).encode())
