"""A submodule of a commit."""

from __future__ import annotations

from imagegen.core.deferred import dataclass
from imagegen.core.types import GitObject, GitUrl, PathBelow
from imagegen.core.validation import Part


@dataclass(frozen=True)
class Submodule(Part):
    """The submodule at `path` of a commit's tree: a commit of another repository, and its tree."""

    path: PathBelow
    url: GitUrl
    commit: GitObject
    tree: GitObject
