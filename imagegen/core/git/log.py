"""A file of the project as commits have it. The system's git reads it, and runs nothing of the repository.

Sources: gitrevisions(7) for names of revisions and for REV:./PATH; git-rev-parse(1), git-cat-file(1),
git-rev-list(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from imagegen.core.git.command import FailedError
from imagegen.core.git.worktree import find


def commit_of(project: Path, revision: str, env: Mapping[str, str]) -> str | None:
    """The commit that `revision` means in the repository around `project`; None where it means none.

    Raises FetchError where git cannot run, or the repository is another user's.
    """
    if not revision or revision.startswith("-"):
        return None
    return _parsed(project, f"{revision}^{{commit}}", env)


def commits(project: Path, path: str, most: int, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Commit and day ("2026-11-20") of each change of a file below `project`, newest first; `most` of them.

    Empty where there is no repository, or nothing is committed. Raises FetchError as `commit_of`.
    """
    arguments = ["rev-list", f"--max-count={most}", "--format=%cs", "HEAD", "--", f"./{path}"]
    lines = (_run(project, arguments, env) or "").splitlines()
    return [(head.removeprefix("commit "), day) for head, day in zip(lines[::2], lines[1::2], strict=True)]


def shallow(project: Path, env: Mapping[str, str]) -> bool:
    """Return whether the repository around `project` was cloned without all of its history."""
    return (_run(project, ["rev-parse", "--is-shallow-repository"], env) or "").strip() == "true"


def file_at(project: Path, commit: str, path: str, env: Mapping[str, str]) -> str | None:
    """The text of a file below `project` as the commit has it; None where it has none."""
    blob = _parsed(project, f"{commit}:./{path}", env)
    return _run(project, ["cat-file", "blob", blob], env) if blob else None


def _parsed(project: Path, name: str, env: Mapping[str, str]) -> str | None:
    return (_run(project, ["rev-parse", "--verify", "--quiet", name], env) or "").strip() or None


def _run(project: Path, arguments: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return git's output. None without a repository, or if it has no such thing or lacks its objects."""
    tree = find(project, env)
    try:
        return tree.run(project, arguments) if tree else None
    except FailedError:
        return None
