"""The history of a lock: its committed versions, the verdict of today's rules on each, and the changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagegen import lock
from imagegen.app.comparison import comparison_facts
from imagegen.app.lock_difference import LockDifference, LockSummary, LockVerdict, lock_difference
from imagegen.app.lock_files import LockFiles
from imagegen.app.nightly import changes
from imagegen.app.nightly.changes import ChangelogSection
from imagegen.app.nightly.propose import RejectedUpdate
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.compare import wording
from imagegen.compare.difference import ComparisonFacts, Difference, difference
from imagegen.compare.operands import of_lock
from imagegen.compat import Facts, Verdict
from imagegen.core import data
from imagegen.core.errors import FetchError, LockError
from imagegen.core.git import log
from imagegen.lock.facts import facts_of_lock
from imagegen.lock.file import loads
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell

LONGEST = 24  # changes of a lock that a report has: half a year of weekly locks
_ALL = 100_000  # commits of a lock that are counted
_UNREAD = "no lock, or one of a form that this imagegen does not read"
_UNCOMMITTED = "uncommitted"  # the page of a change that no commit has yet
_SIZE = re.compile(r"^size = (\d{1,15})$", re.MULTILINE)


@dataclass(frozen=True)
class LockChange:
    """One change of a lock.

    `commit` is None outside a repository; `pending` means that the change is not committed yet. `page` is the name of
    the difference's page among the cell's pages, "" if there is none. `lock` is None if the lock after the change is
    not known.
    """

    date: str  # "2026-11-20"
    commit: str | None
    lines: tuple[str, ...]
    pending: bool = False
    page: str = ""
    rejected: tuple[RejectedUpdate, ...] = ()
    lock: LockSummary | None = None
    difference: LockDifference | None = None


@dataclass(frozen=True)
class History:
    """The changes of a lock, newest first; empty where they are not known.

    `older`: further changes are left out. `missing` states what git could not give, and why.
    """

    steps: tuple[LockChange, ...] = ()
    older: bool = False
    missing: str = ""


@dataclass(frozen=True)
class LockVersion:
    """The lock at one commit; None where it was removed or has a format that is no longer read.

    `page` is its day, and its number if it is not the first of the day.
    """

    commit: str | None
    date: str
    page: str
    lock: Lock | None
    summary: LockSummary = field(default_factory=LockSummary)  # without a verdict


def history(session: Session, cell: Cell, locked: Lock) -> History:
    """Return the history of the project's lock of a cell; it is kept until git, the rules or the lock change.

    Shipped locks have their history in imagegen's own repository. An image with several environments has none, because
    its changes are changes of its cells' locks.
    """
    path = session.lock_files.path(cell)
    if cell.environments:
        return History()
    if path.parent.resolve() != (session.project.directory / "locks").resolve():
        return History(missing="the lock is one that imagegen ships, and its history is in imagegen's repository")
    sections = _sections(session.project, cell)
    try:
        commits = log.commits(path.parent, path.name, _ALL, session.project.env)
        cut = log.shallow(path.parent, session.project.env)
        # The builds of this machine do not count, so that the page is the same on every machine.
        facts = ComparisonFacts(requires=comparison_facts(session.matrices).requires)

        def compute() -> History:
            versions = read_versions(path, locked, commits, session.project.env)
            return history_of(versions, judge(session, cell, versions), sections, facts, cut=cut)

        inputs = (session.project.matrix_results.digest, repr((commits, cut, lock.dumps(locked), sections)))
        return session.project.results.of("history", str(path), inputs, compute)
    except FetchError as error:
        session.project.progress.say(f"the history of {cell.id} is left out: {error}")
        return _of_sections(sections, "git cannot read the repository of the lock")


def _sections(project: ProjectContext, cell: Cell) -> list[ChangelogSection]:
    """Return the entries of the update changelog about the cell, newest first."""
    path = project.directory / "locks" / changes.FILE
    try:
        text = data.read(path, project.directory).decode()
        return [section for section in changes.read(text, path) if section.cell == cell.id]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, LockError) as error:
        project.progress.say(f"{path} is left out: {error}")
        return []


def read_versions(
    path: Path, now: Lock, commits: Sequence[tuple[str, str]], env: Mapping[str, str]
) -> list[LockVersion]:
    """Return the newest versions of the lock file at `path`, whose content is `now`, and the one before these.

    `commits` are all that changed it, newest first, with their days. Raises FetchError where git cannot run.
    """
    pages = page_names([day for _, day in commits])
    versions = []
    for (commit, day), page in zip(commits[: LONGEST + 1], pages, strict=False):
        text = log.file_at(path.parent, commit, path.name, env)
        try:
            read = loads(text, path) if text is not None else None
        except LockError:
            read = None
        summary = summary_of(read) if read else scanned_summary(text or "")
        versions.append(LockVersion(commit, day, page, read, summary))
    if versions and versions[0].lock != now:
        versions.insert(0, LockVersion(None, now.as_of[:10], _UNCOMMITTED, now, summary_of(now)))
    return versions


def page_names(days: Sequence[str]) -> list[str]:
    """Return a name for each of the days, newest first. It is the day, with a number from the second of one day on.

    Names of earlier changes stay when later ones are added.
    """
    numbers: Counter[str] = Counter()
    names = []
    for day in reversed(days):
        numbers[day] += 1
        names.append(day if numbers[day] == 1 else f"{day}-{numbers[day]}")
    return names[::-1]


def summary_of(locked: Lock) -> LockSummary:
    """Return the summary of a lock, without a verdict."""
    sizes = [wheel.file.size for wheel in locked.wheels]
    return LockSummary(sum(filter(None, sizes)), sizes.count(None) + len(locked.builds))


def scanned_summary(text: str) -> LockSummary:
    """Return the summary of a lock of another format: its tables of wheels have named the size alike in all formats."""
    tables = [table.partition("\n[")[0] for table in text.split("\n[[wheel]]\n")[1:]]
    sizes = [int(match[1]) for match in map(_SIZE.search, tables) if match]
    return LockSummary(sum(sizes) if sizes else None, len(tables) - len(sizes) + text.count("\n[[build]]\n"))


def judge(session: Session, cell: Cell, versions: Sequence[LockVersion]) -> list[LockVerdict | None]:
    """Return today's verdict on each version; None for one whose format is not read."""
    verdicts: list[LockVerdict | None] = []
    before: tuple[Facts, LockVerdict] | None = None
    for number, version in enumerate(versions):
        if version.lock is None:
            verdicts.append(None)
            continue
        facts = facts_of_lock(version.lock, cell)
        if before is None or before[0] != facts:  # many commits record another image of the same versions
            verdict = _kept_verdict(session.lock_files, cell, version.lock) if number == 0 else None
            before = facts, LockVerdict.of(verdict or session.judge.verdict(facts))
        verdicts.append(before[1])
    return verdicts


def _kept_verdict(lock_files: LockFiles, cell: Cell, newest: Lock) -> Verdict | None:
    """Return the verdict that was kept with the check of the cell's lock, if that is the newest version."""
    current = lock_files.find(cell)
    try:
        return lock_files.check(current, cell).verdict if current and current == newest else None
    except LockError:  # a platform without wheels, which the state of the cell reports
        return None


def history_of(
    versions: Sequence[LockVersion],
    verdicts: Sequence[LockVerdict | None],
    sections: Sequence[ChangelogSection],
    facts: ComparisonFacts,
    *,
    cut: bool,
) -> History:
    """Return the history of these versions of a lock, newest first, each with a verdict.

    `known` has facts for the comparison of versions. `sections` are the entries of locks/CHANGES.md about the lock;
    each describes the lock that it leads to, and without versions they are the whole history. `cut` means that git has
    only the newest commits.
    """
    if not versions:
        return _of_sections(sections, "the lock is in no git repository, or is not committed")
    notes = {noted.end: noted for noted in reversed(sections)}
    judged = [
        (version, LockSummary(version.summary.size, version.summary.unsized, verdict))
        for version, verdict in zip(versions, verdicts, strict=True)
    ]
    steps = []
    for (new, summary), (old, earlier) in zip(judged, [*judged[1:], (None, LockSummary())], strict=True):
        section = notes.get(lock.inputs_hash(new.lock).removeprefix("sha256:")[:8]) if new.lock else None
        tables = _difference(old, new.lock, facts)
        steps.append(
            LockChange(
                new.date,
                new.commit,
                tuple(_lines(old, new.lock, tables, section, cut=cut)),
                pending=new.commit is None,
                page=new.page if tables or section else "",
                rejected=changes.rejected_in(section) if section else (),
                lock=summary,
                difference=lock_difference(tables, old.commit, earlier) if tables and old and old.commit else None,
            )
        )
    missing = "this clone is shallow: git has only the newest commits" if cut else ""
    return History(tuple(steps[:LONGEST]), older=len(steps) > LONGEST, missing=missing)


def _of_sections(sections: Sequence[ChangelogSection], missing: str) -> History:
    steps = [
        LockChange(entry.date, None, _plain(entry), page=page, rejected=changes.rejected_in(entry))
        for entry, page in zip(sections, page_names([section.date for section in sections]), strict=True)
    ]
    return History(tuple(steps[:LONGEST]), len(steps) > LONGEST, missing)


def _plain(section: ChangelogSection) -> tuple[str, ...]:
    return tuple(map(changes.plain, section.lines))


def _difference(old: LockVersion | None, new: Lock | None, facts: ComparisonFacts) -> Difference | None:
    if old is None or old.lock is None or new is None:
        return None
    before, after = (of_lock(locked.cell, locked.as_of, locked) for locked in (old.lock, new))
    return difference(before, after, facts)


def _lines(
    old: LockVersion | None, new: Lock | None, tables: Difference | None, section: ChangelogSection | None, *, cut: bool
) -> Sequence[str]:
    if new is None:
        return [_UNREAD]
    if section:
        return _plain(section)
    if tables:
        return wording.sentences(tables)
    if old is None:
        return ["the version before is not in this shallow clone" if cut else "locked for the first time"]
    return [f"locked anew; before there was {_UNREAD}"]
