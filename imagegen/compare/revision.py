"""A file of the project as a commit has it, read by the system's git: nothing of the repository is run.

Sources: gitrevisions(7) for what a revision may be called and for REV:./PATH; git-rev-parse(1), git-cat-file(1).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from imagegen.git import command
from imagegen.git.command import FailedError

_CONFIGURATION = {"protocol.allow": "never", "core.fsmonitor": "false", "core.hooksPath": "/dev/null"}


def commit_of(project: Path, revision: str, env: Mapping[str, str]) -> str | None:
    """The commit that `revision` means in the repository around `project`; None where it means none.

    Raises FetchError where git cannot run.
    """
    if not revision or revision.startswith("-"):
        return None
    return _parsed(project, f"{revision}^{{commit}}", env)


def file_at(project: Path, commit: str, path: str, env: Mapping[str, str]) -> str | None:
    """The text of a file below `project` as the commit has it; None where it has none."""
    blob = _parsed(project, f"{commit}:./{path}", env)
    try:
        return command.run(project, _environment(env), ["cat-file", "blob", blob]) if blob else None
    except FailedError:  # it is a directory, or a repository that lacks its objects
        return None


def _parsed(project: Path, name: str, env: Mapping[str, str]) -> str | None:
    try:
        return command.run(project, _environment(env), ["rev-parse", "--verify", "--quiet", name]).strip() or None
    except FailedError:
        return None


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    return command.alone(env, "/nonexistent", _CONFIGURATION) | {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
