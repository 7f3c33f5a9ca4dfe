"""Find and read the repository around a directory without running anything that it names.

Its files may be another user's. So git does not search for a repository, but gets the `.git` that is found here,
and never a directory that only resembles a bare repository. As in git, the owners decide whether it is read at all;
unlike git, root is trusted as well as the user.

Sources: gitrepository-layout(5); git(1), GIT_DIR and GIT_WORK_TREE; git-config(1), safe.directory, git 2.39.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagegen.core.errors import FetchError
from imagegen.core.git import command

_LINK = "gitdir: "  # how a .git begins that is a file
_LONGEST_LINK = 1 << 13  # bytes


class ForeignRepositoryError(FetchError):
    """The repository belongs to a user who is not trusted; `owner` is that user's id."""

    code = "fetch-foreign-repository"

    def __init__(self, top: Path, path: Path, owner: int) -> None:
        self.owner = owner
        super().__init__(
            f"the git repository at {top} belongs to another user and is not read",
            why=f"{path} belongs to {_user(owner)}, imagegen runs as {_user(os.geteuid())}; "
            "its owner could have commands run as you",
            fix=f"remove it if it does not belong there; if it is yours, change its owner, or tell git: "
            f"git config --global --add safe.directory {top}",
        )


@dataclass(frozen=True)
class Worktree:
    """A working tree from `top` down, its git directory, and the user's environment."""

    top: Path
    directory: Path
    env: Mapping[str, str]

    def run(self, folder: Path, arguments: Sequence[str], configuration: Mapping[str, str] | None = None) -> str:
        """Return git's output in a folder of the tree. Raises as `command.run`."""
        env = command.environment(self.env, os.devnull, configuration or {})
        env |= {"GIT_DIR": str(self.directory), "GIT_WORK_TREE": str(self.top)}
        return command.run(folder, env, arguments)


def find(folder: Path, env: Mapping[str, str]) -> Worktree | None:
    """Return the working tree that `folder` lies in, None where there is none.

    Raises ForeignRepositoryError, and FetchError where the user's own configuration of git cannot be read.
    """
    folder = folder.resolve()
    device = folder.stat().st_dev
    for top in (folder, *folder.parents):
        if top.stat().st_dev != device:
            return None  # as git: a file system's end is a repository's
        link = top / ".git"
        if link.is_file() or os.path.lexists(link / "HEAD"):
            directory = _directory(link)
            _require_trusted(top, link, directory, env)
            return Worktree(top, directory, env)
    return None


def _directory(link: Path) -> Path:
    """Return the git directory behind a .git, itself where it leads nowhere: git reports what is wrong with it."""
    if link.is_file():
        with link.open("rb") as file:
            text = os.fsdecode(file.read(_LONGEST_LINK))
        if not text.startswith(_LINK) or "\0" in text:
            return link
        link = link.parent / text.removeprefix(_LINK).rstrip("\r\n")
    return Path(os.path.realpath(link))  # Path.resolve raises where links lead in a circle


def _require_trusted(top: Path, link: Path, directory: Path, env: Mapping[str, str]) -> None:
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and env.get("SUDO_UID", "").isdecimal():
        trusted.add(int(env["SUDO_UID"]))  # the user who runs this as root, as in git
    for path in (top, link, directory):
        if os.path.lexists(path) and (owner := path.lstat().st_uid) not in trusted:
            if not _is_declared_safe(top, env):
                raise ForeignRepositoryError(top, path, owner)
            return


def _is_declared_safe(top: Path, env: Mapping[str, str]) -> bool:
    """Return whether the user's configuration lists the directory, or all of them; an empty entry clears the list."""
    safe = False
    for _, value in command.user_configuration(env, r"^safe\.directory$"):
        safe = bool(value) and (safe or value == "*" or Path(value) == top)
    return safe


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"
