"""Images of a few layers with chosen members."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping

import zstandard

from imagegen.core.store import Store
from imagegen.image.layers import Image, Layer
from imagegen.oci.documents import ZSTD_TYPE

Files = Mapping[str, bytes | None]  # path -> content; None: removed from the layers below


def layer(store: Store, *members: tarfile.TarInfo, contents: Mapping[str, bytes] | None = None) -> Layer:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            content = (contents or {}).get(member.name, b"")
            member.size, member.uid, member.gid = len(content), os.getuid(), os.getgid()
            archive.addfile(member, io.BytesIO(content))
    tar = buffer.getvalue()
    digest = store.write(zstandard.compress(tar))
    return Layer(ZSTD_TYPE, digest, len(tar), "sha256:diff", "test", "sha256:key", len(tar))


def member(path: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    found = tarfile.TarInfo(path)
    found.type, found.linkname, found.mode, found.mtime = kind, target, mode, 1_700_000_000
    return found


def files_layer(store: Store, files: Files) -> Layer:
    """A layer with files, their parents, and whiteouts of the paths whose content is None."""
    members: dict[str, tarfile.TarInfo] = {}
    contents = {}
    for path, content in files.items():
        folder, _, name = path.rpartition("/")
        parts = folder.split("/")
        for depth in range(1, len(parts) + 1):
            members.setdefault("/".join(parts[:depth]), member("/".join(parts[:depth]), tarfile.DIRTYPE, mode=0o755))
        full = path if content is not None else f"{folder}/.wh.{name}"
        members[full] = member(full)
        contents[full] = content or b""
    return layer(store, *members.values(), contents=contents)


def image(*layers: Layer) -> Image:
    config = {"config": {"Env": ["PATH=/bin"], "Entrypoint": [], "Cmd": ["sh"], "WorkingDir": "/"}}
    return Image("sha256:image", b"{}", json.dumps(config).encode(), layers)
