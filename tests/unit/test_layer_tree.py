"""The rules by which layers become a file tree: against a model of them, and in all readers of layers."""

from __future__ import annotations

import io
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import event, example, given
from hypothesis import strategies as st

from imagegen.core.errors import BaseError, StoreError
from imagegen.core.layer_tar import Allowance
from imagegen.core.layer_tree import MemberKind, MergedTree, SymbolicLink, whiteout_of
from imagegen.core.store import Store
from imagegen.export import read_tree
from imagegen.image.base.unpack import unpack
from imagegen.image.inventory.layers import LayeredTree, read_layer
from imagegen.image.inventory.tree import Directory, Regular
from imagegen.image.layers import Layer
from imagegen.oci.documents import LayerDescriptor, digest_of
from tests.support.image_layers import image
from tests.support.layer_model import LAYERS, Member, Tree, apply, as_tar, with_directories, written_layer

TAR = "application/vnd.oci.image.layer.v1.tar"


def merged(changesets: Sequence[Sequence[Member]]) -> Tree | None:
    """Return the merged tree; None for layers that no reader takes."""
    tree = MergedTree[int]()
    try:
        for changeset in changesets:
            tree.begin_layer()
            for member in changeset:
                tree.add(member.path, member.kind, member.size, member.target)
    except ValueError:
        return None
    return {path: "/" if node.children is not None else node.target or node.entry or 0 for path, node in tree.walk()}


def unpacked(tars: Sequence[bytes], store: Store, root: Path) -> Tree | None:
    """Return the tree as `unpack` writes it."""
    try:
        unpack([LayerDescriptor(TAR, store.write(tar), len(tar), digest_of(tar)) for tar in tars], store, root)
    except BaseError:
        return None
    return {
        str(path.relative_to(root)): os.readlink(path)
        if path.is_symlink()
        else "/"
        if path.is_dir()
        else path.stat().st_size
        for path in root.rglob("*")
    }


def inventory(tars: Sequence[bytes], scratch: Path) -> Tree:
    """Return the tree as audits and imports see it."""
    tree = LayeredTree()
    for tar in tars:
        tree.add(read_layer(io.BytesIO(tar), scratch, Allowance()))
    paths: Tree = {}
    waiting = ["/"]
    while waiting:
        directory = waiting.pop()
        for name, node in tree.entries(directory):
            path = f"{directory.rstrip('/')}/{name}"
            match node:
                case Directory():
                    paths[path[1:]] = "/"
                    waiting.append(path)
                case SymbolicLink(target):
                    paths[path[1:]] = target
                case Regular(size):
                    paths[path[1:]] = size
    return paths


def exported(tars: Sequence[bytes], store: Store) -> Tree | None:
    """Return the tree as `export` writes it; None for one that it refuses."""
    found = [Layer(TAR, store.write(tar), len(tar), digest_of(tar), "layer", "sha256:key") for tar in tars]
    try:
        entries = read_tree(image(*found), store).entries
    except StoreError:
        return None
    return {entry.path: {"directory": "/", "symlink": entry.target}.get(entry.kind, entry.size) for entry in entries}


@given(LAYERS)
@example([[Member("d/x")], [Member("d/y"), Member(".wh.d")]])
@example([[Member("d/e/x")], [Member("d/e/y"), Member("d/.wh..wh..opq")]])
@example([[Member("x")], [Member(".wh.x"), Member("y", MemberKind.HARD_LINK, target="x")]])
@example([[Member("x")], [Member("y", MemberKind.HARD_LINK, target="x"), Member(".wh.x")]])
@example([[Member("d", MemberKind.SYMBOLIC_LINK, target="/e")], [Member("d/x"), Member("e/.wh.x")]])
@example([[Member("d")], [Member("d/.wh.x"), Member("e/.wh..wh..opq")]])
def test_merged_layers_are_those_of_the_model(changesets: list[list[Member]]) -> None:
    expected = apply(changesets)
    event("refused" if expected is None else "merged")
    assert merged(changesets) == expected


@given(LAYERS, st.booleans())
def test_all_readers_see_the_same_tree(changesets: list[list[Member]], is_described: bool) -> None:
    if is_described:  # the export refuses directories that no layer describes
        changesets = [with_directories(changeset) for changeset in changesets]
    expected = apply(changesets)
    tars = [as_tar(changeset) for changeset in changesets]
    with tempfile.TemporaryDirectory() as work:
        root = Path(work, "root")
        root.mkdir()
        store = Store(Path(work, "store"))
        assert unpacked(tars, store, root) == expected
        if expected is not None:
            assert inventory(tars, Path(work)) == expected
        export = exported(tars, store)
        event("exported" if export is not None else "not exported")
        assert export in (None, expected) or not is_described


@given(LAYERS, st.booleans())
def test_layers_as_builders_write_them_give_back_the_trees(changesets: list[list[Member]], opaque: bool) -> None:
    trees = [tree for count in range(len(changesets) + 1) if (tree := apply(changesets[:count])) is not None]
    layers = [written_layer(before, after, opaque) for before, after in itertools.pairwise(trees)]
    assert merged(layers) == trees[-1]


def test_a_whiteout_stands_next_to_what_it_hides() -> None:
    assert (whiteout_of("a/b/c"), whiteout_of("c")) == ("a/b/.wh.c", ".wh.c")
