"""Sources from git, by commit and tree, and from disk: packed by ourselves, so that equal files give equal bytes."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.core.git.local import pack, unchanged
    from imagegen.core.git.source_tree import LARGEST_POINTER, PackedTree, TreeSource, archive, is_pointer

__getattr__ = lazy_names(
    __name__,
    {
        "local": ("pack", "unchanged"),
        "source_tree": ("LARGEST_POINTER", "PackedTree", "TreeSource", "archive", "is_pointer"),
    },
)
