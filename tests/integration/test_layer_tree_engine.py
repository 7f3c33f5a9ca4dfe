"""A container engine makes the same file tree of layers as the readers of layers do."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.engine import Engine
from imagegen.oci.documents import digest_of
from tests.support.layer_model import LAYERS, Member, Tree, apply, as_tar, written_layer

pytestmark = pytest.mark.integration

TAG = "imagegen/layer-tree:test"


def archive(tars: Sequence[bytes]) -> bytes:
    """Return an image of these layers as `docker save` writes it (Docker image specification v1.2)."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
    }
    names = [f"{number}/layer.tar" for number in range(len(tars))]
    manifest = [{"Config": "config.json", "RepoTags": [TAG], "Layers": names}]
    files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in {**files, **dict(zip(names, tars, strict=True))}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def tree_in_engine(engine: Engine, tars: Sequence[bytes]) -> Tree:
    """Load the layers as an image, and return the file tree of a container, without the engine's own files."""
    engine.client.images.load(archive(tars))
    container = engine.client.containers.create(TAG)
    try:
        data = b"".join(container.export())
    finally:
        container.remove(force=True)
        engine.client.images.remove(TAG, force=True)
    tree: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            path = member.name.rstrip("/")
            if path.partition("/")[0] not in {"a", "b", "c"}:
                continue
            if member.islnk():
                tree[path] = tree[member.linkname]
            else:
                tree[path] = "/" if member.isdir() else member.linkname if member.issym() else member.size
    return tree


@settings(max_examples=20, derandomize=True)
@given(LAYERS.filter(bool), st.booleans())
def test_an_engine_merges_layers_alike(engine: Engine, changesets: list[list[Member]], opaque: bool) -> None:
    trees = [tree for count in range(len(changesets) + 1) if (tree := apply(changesets[:count])) is not None]
    layers = [written_layer(before, after, opaque) for before, after in itertools.pairwise(trees)]
    if layers:
        assert tree_in_engine(engine, [as_tar(layer) for layer in layers]) == trees[-1]
