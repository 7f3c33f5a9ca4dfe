"""What became of a lock over time, as the repository around the project has it; nothing of the repository is run.

Sources: git-rev-list(1), git-cat-file(1), git 2.39; gitrevisions(7) for REV:./PATH.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagegen import lock
from imagegen.errors import LockError
from imagegen.git import command
from imagegen.git.command import FailedError
from imagegen.lock.file import loads
from imagegen.lock.model import Lock

LONGEST = 12  # steps on a page: three months of weekly locks
_CONFIGURATION = {
    "safe.directory": "*",
    "protocol.allow": "never",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
}
_UNREAD = "an older form of the lock, which this imagegen does not read"

Sentences = Callable[[Lock, Lock], Sequence[str]]  # what the second has otherwise than the first
Notes = Mapping[str, Sequence[str]]  # first 8 hex digits of a lock's inputs -> what was said when it was made


@dataclass(frozen=True)
class Step:
    """One change of a lock. `commit` is None for what nobody has committed yet."""

    date: str  # "2026-11-20"
    commit: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """Newest first; `older`: there is more, which is left out. No steps: nobody knows."""

    steps: tuple[Step, ...] = ()
    older: bool = False


def history_of(path: Path, now: Lock, sentences: Sentences, notes: Notes, env: Mapping[str, str]) -> History:
    """The history of the lock file at `path`, which holds `now`. Raises FetchError where git cannot run."""
    commits = _commits(path, env)
    if not commits:
        return History()
    versions = [_Version.of(path, commit, date, env) for commit, date in commits]
    if versions[0].lock != now:
        versions.insert(0, _Version(None, now.as_of[:10], now))
    pairs = zip(versions, [*versions[1:], None], strict=True)
    steps = [Step(new.date, new.commit, tuple(_told(old, new.lock, sentences, notes))) for new, old in pairs]
    return History(tuple(steps[:LONGEST]), older=len(steps) > LONGEST)


@dataclass(frozen=True)
class _Version:
    """The lock as a commit has it; None where it is of a form that is not read any more."""

    commit: str | None
    date: str
    lock: Lock | None

    @classmethod
    def of(cls, path: Path, commit: str, date: str, env: Mapping[str, str]) -> _Version:
        try:
            return cls(commit, date, loads(_run(path, ["cat-file", "blob", f"{commit}:./{path.name}"], env), path))
        except (FailedError, LockError):  # it was removed then, or its form is another
            return cls(commit, date, None)


def _told(old: _Version | None, new: Lock | None, sentences: Sentences, notes: Notes) -> Sequence[str]:
    if new is None:
        return [_UNREAD]
    if said := notes.get(lock.inputs_hash(new).removeprefix("sha256:")[:8]):
        return said
    if old is None:
        return ["locked for the first time"]
    if old.lock is None:
        return [f"locked anew; before it was {_UNREAD}"]
    return sentences(old.lock, new)


def _commits(path: Path, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Commit and date of each change of the file, newest first: two more than are shown."""
    arguments = ["rev-list", f"--max-count={LONGEST + 2}", "--format=%cs", "HEAD", "--", f"./{path.name}"]
    try:
        lines = _run(path, arguments, env).splitlines()
    except FailedError:  # no repository, or nothing committed
        return []
    return [(head.removeprefix("commit "), date) for head, date in zip(lines[::2], lines[1::2], strict=True)]


def _run(path: Path, arguments: Sequence[str], env: Mapping[str, str]) -> str:
    own = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    return command.run(path.parent, command.alone(env, "/nonexistent", _CONFIGURATION) | own, arguments)
