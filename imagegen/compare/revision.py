"""A file of the project as commits have it, read by the system's git: nothing of the repository is run.

Sources: gitrevisions(7) for what a revision may be called and for REV:./PATH; git-rev-parse(1), git-cat-file(1),
git-rev-list(1).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from imagegen.git import command
from imagegen.git.command import FailedError

_CONFIGURATION = {
    "safe.directory": "*",  # in a container the checkout is often somebody else's
    "protocol.allow": "never",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
}


def commit_of(project: Path, revision: str, env: Mapping[str, str]) -> str | None:
    """The commit that `revision` means in the repository around `project`; None where it means none.

    Raises FetchError where git cannot run.
    """
    if not revision or revision.startswith("-"):
        return None
    return _parsed(project, f"{revision}^{{commit}}", env)


def commits(project: Path, path: str, most: int, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Commit and day ("2026-11-20") of each change of a file below `project`, newest first; `most` of them.

    Empty where there is no repository, or nothing is committed. Raises FetchError where git cannot run.
    """
    arguments = ["rev-list", f"--max-count={most}", "--format=%cs", "HEAD", "--", f"./{path}"]
    try:
        lines = command.run(project, _environment(env), arguments).splitlines()
    except FailedError:
        return []
    return [(head.removeprefix("commit "), day) for head, day in zip(lines[::2], lines[1::2], strict=True)]


def shallow(project: Path, env: Mapping[str, str]) -> bool:
    """Whether the repository around `project` was cloned without all of its history."""
    try:
        return command.run(project, _environment(env), ["rev-parse", "--is-shallow-repository"]).strip() == "true"
    except FailedError:
        return False


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
