"""The history of a lock: its commits in the project's repository, and the entries of the update changelog."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagegen.app.nightly import changes
from imagegen.app.nightly.changes import ChangelogSection
from imagegen.core.errors import LockError
from imagegen.core.git import local
from imagegen.plan import lock
from imagegen.plan.lock.file import loads
from imagegen.plan.lock.model import Lock

LONGEST = 12  # steps on a page: three months of weekly locks
_UNREAD = "no lock, or one of a form that this imagegen does not read"

Sentences = Callable[[Lock, Lock], Sequence[str]]  # what the second has otherwise than the first


@dataclass(frozen=True)
class LockChange:
    """One change of a lock.

    `commit` is None outside a repository; `pending` means that the change is not committed yet.
    """

    date: str  # "2026-11-20"
    commit: str | None
    lines: tuple[str, ...]
    pending: bool = False


@dataclass(frozen=True)
class History:
    """The changes of a lock, newest first; empty where they are not known. `older`: further changes are left out."""

    steps: tuple[LockChange, ...] = ()
    older: bool = False


def history_of(
    path: Path, now: Lock, sentences: Sentences, sections: Sequence[ChangelogSection], env: Mapping[str, str]
) -> History:
    """Return the history of the lock file at `path`, whose content is `now`.

    `sections` are the sections of locks/CHANGES.md about it; each describes the lock that it leads to, and without a
    repository they are the whole history. Raises FetchError where git cannot run.
    """
    commits = local.commits(path.parent, path.name, LONGEST + 2, env)
    if not commits:
        steps = [LockChange(each.date, None, _said(each)) for each in sections]
    else:
        versions = [_Version.of(path, commit, date, env) for commit, date in commits]
        if versions[0].lock != now:
            versions.insert(0, _Version(None, now.as_of[:10], now))
        notes = {each.end: _said(each) for each in reversed(sections)}
        cut = local.shallow(path.parent, env)
        pairs = zip(versions, [*versions[1:], None], strict=True)
        steps = [new.step(tuple(_lines(old, new.lock, sentences, notes, cut=cut))) for new, old in pairs]
    return History(tuple(steps[:LONGEST]), older=len(steps) > LONGEST)


def _said(section: ChangelogSection) -> tuple[str, ...]:
    return tuple(map(changes.plain, section.lines))


@dataclass(frozen=True)
class _Version:
    """The lock at one commit; None where it was removed or has a format that is no longer read."""

    commit: str | None
    date: str
    lock: Lock | None

    @classmethod
    def of(cls, path: Path, commit: str, date: str, env: Mapping[str, str]) -> _Version:
        text = local.file_at(path.parent, commit, path.name, env)
        try:
            return cls(commit, date, loads(text, path) if text is not None else None)
        except LockError:
            return cls(commit, date, None)

    def step(self, lines: tuple[str, ...]) -> LockChange:
        return LockChange(self.date, self.commit, lines, pending=self.commit is None)


def _lines(
    old: _Version | None, new: Lock | None, sentences: Sentences, notes: Mapping[str, Sequence[str]], *, cut: bool
) -> Sequence[str]:
    if new is None:
        return [_UNREAD]
    if said := notes.get(lock.inputs_hash(new).removeprefix("sha256:")[:8]):
        return said
    if old is None:
        return ["what it was before is not in this shallow clone" if cut else "locked for the first time"]
    if old.lock is None:
        return [f"locked anew; before there was {_UNREAD}"]
    return sentences(old.lock, new)
