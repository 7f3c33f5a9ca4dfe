"""A minimal OCI image: a few files in two zstd layers. Source: OCI image-spec v1.1."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping

import zstandard

from imagegen.core.store import Store
from imagegen.oci.documents import digest_of

PROGRAMS = ("sh", "cat", "echo", "sleep", "kill", "ls")


def tiny_image(store: Store, busybox: bytes, files: Mapping[str, bytes], architecture: str = "amd64") -> str:
    """Put an image with busybox in its first layer and `files` in its second into the store; the manifest's digest."""
    tools = {"bin/busybox": busybox, **{f"bin/{name}": "busybox" for name in PROGRAMS}}
    layers = [_layer(store, tools), _layer(store, files)]
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor(store, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor for _, descriptor in layers],
    }
    return store.write(json.dumps(manifest).encode())


def _layer(store: Store, files: Mapping[str, bytes | str]) -> tuple[str, dict[str, object]]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o755
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    raw = buffer.getvalue()
    packed = zstandard.ZstdCompressor().compress(raw)
    return digest_of(raw), _descriptor(store, packed, "application/vnd.oci.image.layer.v1.tar+zstd")


def _descriptor(store: Store, data: bytes, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": store.write(data), "size": len(data)}
