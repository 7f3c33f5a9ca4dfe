"""A submodule of a commit, as recipes and locks name it."""

from __future__ import annotations

from dataclasses import dataclass

from imagegen.core.types import GitObject, GitUrl, Part, PathBelow


@dataclass(frozen=True)
class Submodule(Part):
    """The submodule at `path` of a commit's tree: a commit of another repository, and its tree."""

    path: PathBelow
    url: GitUrl
    commit: GitObject
    tree: GitObject
