"""Sources from git, by commit and tree, and from disk: packed by ourselves, so that equal files give equal bytes."""

from imagegen.core.git.archive import LARGEST_POINTER, Archive, Source, Submodule, archive, is_pointer
from imagegen.core.git.local import pack, unchanged

__all__ = ["LARGEST_POINTER", "Archive", "Source", "Submodule", "archive", "is_pointer", "pack", "unchanged"]
