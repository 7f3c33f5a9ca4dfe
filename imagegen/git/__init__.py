"""Sources from git, by commit and tree, and from disk: packed by ourselves, so that equal files give equal bytes."""

from imagegen.git.archive import LARGEST_POINTER, Archive, Source, Submodule, archive, is_pointer
from imagegen.git.local import pack, unchanged

__all__ = ["LARGEST_POINTER", "Archive", "Source", "Submodule", "archive", "is_pointer", "pack", "unchanged"]
