"""Sources from git, by commit and tree, and from disk: packed by ourselves, so that equal files give equal bytes."""

from imagegen.core.git.local import pack, unchanged
from imagegen.core.git.tree import LARGEST_POINTER, PackedTree, Submodule, TreeSource, archive, is_pointer

__all__ = ["LARGEST_POINTER", "PackedTree", "Submodule", "TreeSource", "archive", "is_pointer", "pack", "unchanged"]
