"""Find the source of a project: its repository, its commit, and whether files differ from the commit.

Programs that the repository's settings name are not run. Sources: git-config(1), git-status(1), git-remote(1), git
2.39; URLs of pip's and SPDX's form "git+https://...".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from imagegen.core.errors import FetchError
from imagegen.core.git import command
from imagegen.core.git.worktree import Worktree, find

_STATUS = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")
_SHORT = re.compile(r"(?:[^@/\s]+@)?([^:/\s]+):(?!//)(.+)")  # git@github.com:acme/images.git


@dataclass(frozen=True)
class SourceCommit:
    """The commit of a project.

    `url` has no credentials, None without a remote. `dirty` is true if files differ from it.
    """

    url: str | None
    commit: str  # 40 or 64 hex digits
    dirty: bool


def find_source(project: Path, env: Mapping[str, str], url: str | None = None) -> SourceCommit | None:
    """Return the commit of a project's directory; None without git, a repository or a commit.

    `url` is the repository's address from `source` in publish.yaml, if it is set. Raises ForeignRepositoryError.
    """
    tree = find(project, env)
    if tree is None:
        return None
    try:
        commit = tree.run(project, ["rev-parse", "--verify", "HEAD"]).strip()
        changed = tree.run(project, _STATUS, _no_filters(project, tree))
    except (command.FailedError, FetchError):
        return None
    return SourceCommit(url or _remote(project, tree), commit, bool(changed.strip()))


def _no_filters(project: Path, tree: Worktree) -> dict[str, str]:
    """Return settings that disable the programs that filter a repository's files (gitattributes(5)).

    If such a filter is needed to compare a file with the commit's, the file counts as changed.
    """
    try:
        filter_names = tree.run(project, ["config", "--null", "--name-only", "--get-regexp", r"^filter\."])
    except command.FailedError:
        return {}  # no filters are set
    drivers = {name.rpartition(".")[0] for name in filter_names.split("\0") if name}
    # An empty `process` overrides `clean`, too.
    return {
        f"{driver}.{key}": value
        for driver in sorted(drivers)
        for key, value in (("process", ""), ("required", "false"))
    }


def _remote(project: Path, tree: Worktree) -> str | None:
    try:
        remote_url = tree.run(project, ["config", "--get", "remote.origin.url"]).strip()
    except (command.FailedError, FetchError):
        return None
    return public_url(remote_url)


def public_url(address: str) -> str | None:
    """Return a remote's address without user, password and query; None for a directory of this machine."""
    if "://" not in address:
        short = _SHORT.fullmatch(address)
        return f"ssh://{short[1]}/{short[2].lstrip('/')}" if short else None
    try:
        url = urlsplit(address)
        port = f":{url.port}" if url.port else ""
    except ValueError:
        return None
    if url.scheme not in ("http", "https", "ssh", "git") or not url.hostname:
        return None
    return f"{url.scheme}://{url.hostname}{port}{url.path}"
