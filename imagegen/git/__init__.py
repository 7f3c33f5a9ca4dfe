"""Sources from git, by commit and tree: fetched by the system's git, packed by ourselves."""

from imagegen.git.archive import LARGEST_POINTER, Archive, Source, Submodule, archive, is_pointer

__all__ = ["LARGEST_POINTER", "Archive", "Source", "Submodule", "archive", "is_pointer"]
