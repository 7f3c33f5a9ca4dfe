"""The origin of a project's files: the repository, the commit, and whether something was changed since.

Nothing that the repository names is run. Source: git-config(1), git-status(1), git-remote(1), git 2.39; URLs of pip's
and SPDX's form "git+https://...".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from imagegen.core.errors import FetchError
from imagegen.core.git import command, worktree
from imagegen.core.git.worktree import Worktree

_STATUS = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")
_SHORT = re.compile(r"(?:[^@/\s]+@)?([^:/\s]+):(?!//)(.+)")  # git@github.com:acme/images.git


@dataclass(frozen=True)
class Source:
    """`url` has no credentials, and is None where no remote is named; `dirty`: the files are not the commit's."""

    url: str | None
    commit: str  # 40 or 64 hex digits
    dirty: bool


def of(project: Path, env: Mapping[str, str], url: str | None = None) -> Source | None:
    """Return the commit that a project's directory is at. None without git, or where no repository and no commit is.

    `url` is the repository's address where publish.yaml's `source` names it. Raises ForeignRepositoryError.
    """
    tree = worktree.find(project, env)
    if tree is None:
        return None
    try:
        commit = tree.run(project, ["rev-parse", "--verify", "HEAD"]).strip()
        changed = tree.run(project, _STATUS, _no_filters(project, tree))
    except (command.FailedError, FetchError):
        return None
    return Source(url or _remote(project, tree), commit, bool(changed.strip()))


def _no_filters(project: Path, tree: Worktree) -> dict[str, str]:
    """Return settings that disable the programs that filter a repository's files (gitattributes(5)).

    If such a filter is needed to compare a file with the commit's, the file counts as changed.
    """
    try:
        named = tree.run(project, ["config", "--null", "--name-only", "--get-regexp", r"^filter\."])
    except command.FailedError:
        return {}  # there is none
    drivers = {name.rpartition(".")[0] for name in named.split("\0") if name}
    # An empty `process` takes the place of `clean`, too.
    return {
        f"{each}.{key}": value for each in sorted(drivers) for key, value in (("process", ""), ("required", "false"))
    }


def _remote(project: Path, tree: Worktree) -> str | None:
    try:
        found = tree.run(project, ["config", "--get", "remote.origin.url"]).strip()
    except (command.FailedError, FetchError):
        return None
    return public(found)


def public(address: str) -> str | None:
    """Return a remote's address without user, password and query; None for a directory, which other machines cannot
    reach.
    """
    if "://" not in address:
        short = _SHORT.fullmatch(address)
        return f"ssh://{short[1]}/{short[2].lstrip('/')}" if short else None
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return None
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return None
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
