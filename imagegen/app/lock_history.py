"""The history of a lock: its committed versions, today's verdict on each, and what each changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

from imagegen.app.comparison import comparison_facts
from imagegen.app.nightly import changes
from imagegen.app.nightly.changes import ChangelogSection
from imagegen.app.nightly.propose import RejectedUpdate
from imagegen.app.session import Session
from imagegen.core import data
from imagegen.core.errors import FetchError, LockError
from imagegen.core.git import local
from imagegen.plan import lock
from imagegen.plan.lock.file import loads
from imagegen.plan.lock.model import Lock
from imagegen.plan.matrix.model import Cell
from imagegen.plan.rules import Facts, Verdict, facts_of_lock
from imagegen.supply.compare import wording
from imagegen.supply.compare.difference import Change, ComparisonFacts, Difference, difference
from imagegen.supply.compare.operands import of_lock

LONGEST = 24  # changes of a lock that a report has: half a year of weekly locks
_ALL = 100_000  # commits of a lock that are counted
_UNREAD = "no lock, or one of a form that this imagegen does not read"
_UNCOMMITTED = "uncommitted"  # the page of a change that no commit has yet
_SIZE = re.compile(r"^size = (\d{1,15})$", re.MULTILINE)


@dataclass(frozen=True)
class LockVerdict:
    """The verdict of today's rules on the versions of a lock; `rules` refuse it, else they only warn of it."""

    refused: bool
    rules: tuple[str, ...] = ()  # ids
    reason: str = ""

    @classmethod
    def of(cls, verdict: Verdict) -> LockVerdict:
        refused = verdict.answer == "incompatible"
        counted = [conflict for conflict in verdict.conflicts if not refused or conflict.severity == "error"]
        rules = {rule.id: rule for each in counted for rule in each.rules}
        return cls(refused, tuple(rules), " ".join(dict.fromkeys(rule.because for rule in rules.values())))


@dataclass(frozen=True)
class LockSummary:
    """The size of a lock and the verdict on it.

    `size` is the sum of its wheels in bytes, None without any; `unsized` counts packages that it has no size of.
    `verdict` is None where this imagegen does not read the format of the lock.
    """

    size: int | None = None
    unsized: int = 0
    verdict: LockVerdict | None = None


@dataclass(frozen=True)
class PackageChange:
    """A package that differs. `step` is the part of the version that moved; sizes are of the wheels, in bytes."""

    name: str
    before: str | None
    after: str | None
    step: str
    size_before: int | None
    size_after: int | None
    why: str = ""

    @property
    def growth(self) -> int | None:
        """Bytes by which the wheel grew; None where a size that counts is not known."""
        sizes = [(self.before, self.size_before), (self.after, self.size_after)]
        if any(version is not None and size is None for version, size in sizes):
            return None
        return (self.size_after or 0) - (self.size_before or 0)


@dataclass(frozen=True)
class OtherChange:
    """Anything but a package that differs, such as the base."""

    kind: str  # "Debian package"
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class LockDifference:
    """The tables of a change of a lock; `since` is the commit of the lock before."""

    since: str
    before: LockSummary
    packages: tuple[PackageChange, ...]
    others: tuple[OtherChange, ...]


@dataclass(frozen=True)
class LockChange:
    """One change of a lock.

    `commit` is None outside a repository; `pending` means that the change is not committed yet. `page` names the page
    of the difference among those of the cell, "" where nothing is known that it would show. `lock` is None where the
    lock after the change is not known.
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

    `page` is its day, and its number among those of the day where it is not the first.
    """

    commit: str | None
    date: str
    page: str
    lock: Lock | None
    summary: LockSummary = field(default_factory=LockSummary)  # without a verdict


def history(session: Session, cell: Cell, locked: Lock) -> History:
    """Return the history of the project's lock of a cell; it is kept until git, the rules or the lock change.

    Shipped locks have theirs in imagegen's own repository. An image with several environments has none: its changes
    are those of the locks of its cells.
    """
    path = session.lock_path(cell)
    if cell.environments:
        return History()
    if path.parent.resolve() != (session.project / "locks").resolve():
        return History(missing="the lock is one that imagegen ships, and its history is in imagegen's repository")
    sections = _sections(session, cell)
    try:
        commits = local.commits(path.parent, path.name, _ALL, session.env)
        cut = local.shallow(path.parent, session.env)
        # Without the builds that this machine has or lacks: the page is the same on every machine.
        known = ComparisonFacts(requires=comparison_facts(session).requires)

        def compute() -> History:
            versions = read_versions(path, locked, commits, session.env)
            return history_of(versions, judge(session, cell, versions), sections, known, cut=cut)

        inputs = (session.sources, repr((commits, cut, lock.dumps(locked), sections)))
        return session.compiled.of("history", str(path), inputs, compute)
    except FetchError as error:
        session.progress.say(f"the history of {cell.id} is left out: {error}")
        return _of_sections(sections, "git cannot read the repository of the lock")


def _sections(session: Session, cell: Cell) -> list[ChangelogSection]:
    """Return the entries of the update changelog about the cell, newest first."""
    path = session.project / "locks" / changes.FILE
    try:
        text = data.read(path, session.project).decode()
        return [each for each in changes.read(text, path) if each.cell == cell.id]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, LockError) as error:
        session.progress.say(f"{path} is left out: {error}")
        return []


def read_versions(
    path: Path, now: Lock, commits: Sequence[tuple[str, str]], env: Mapping[str, str]
) -> list[LockVersion]:
    """Return the newest versions of the lock file at `path`, whose content is `now`, and the one before these.

    `commits` are all that changed it, newest first, with their days. Raises FetchError where git cannot run.
    """
    pages = page_names([day for _, day in commits])
    found = []
    for (commit, day), page in zip(commits[: LONGEST + 1], pages, strict=False):
        text = local.file_at(path.parent, commit, path.name, env)
        try:
            read = loads(text, path) if text is not None else None
        except LockError:
            read = None
        summary = summary_of(read) if read else scanned_summary(text or "")
        found.append(LockVersion(commit, day, page, read, summary))
    if found and found[0].lock != now:
        found.insert(0, LockVersion(None, now.as_of[:10], _UNCOMMITTED, now, summary_of(now)))
    return found


def page_names(days: Sequence[str]) -> list[str]:
    """Return a name for each of the days, newest first: the day, with a number from the second of one day on.

    Names of earlier changes stay when later ones are added.
    """
    numbers: Counter[str] = Counter()
    names = []
    for day in reversed(days):
        numbers[day] += 1
        names.append(day if numbers[day] == 1 else f"{day}-{numbers[day]}")
    return names[::-1]


def summary_of(found: Lock) -> LockSummary:
    """Return the summary of a lock, without a verdict."""
    sizes = [wheel.file.size for wheel in found.wheels]
    return LockSummary(sum(filter(None, sizes)), sizes.count(None) + len(found.builds))


def scanned_summary(text: str) -> LockSummary:
    """Return the summary of a lock of another format: its tables of wheels have named the size alike in all formats."""
    tables = [table.partition("\n[")[0] for table in text.split("\n[[wheel]]\n")[1:]]
    sizes = [int(found[1]) for found in map(_SIZE.search, tables) if found]
    return LockSummary(sum(sizes) if sizes else None, len(tables) - len(sizes) + text.count("\n[[build]]\n"))


def judge(session: Session, cell: Cell, versions: Sequence[LockVersion]) -> list[LockVerdict | None]:
    """Return today's verdict on each version; None for one whose format is not read."""
    found: list[LockVerdict | None] = []
    before: tuple[Facts, LockVerdict] | None = None
    for number, version in enumerate(versions):
        if version.lock is None:
            found.append(None)
            continue
        facts = facts_of_lock(version.lock, cell.base.glibc)
        if before is None or before[0] != facts:  # many commits record another image of the same versions
            verdict = _kept_verdict(session, cell, version.lock) if number == 0 else None
            before = facts, LockVerdict.of(verdict or session.judge(facts, cell))
        found.append(before[1])
    return found


def _kept_verdict(session: Session, cell: Cell, newest: Lock) -> Verdict | None:
    """Return the verdict that was kept with the check of the cell's lock, where that is the newest version."""
    current = session.find_lock(cell)
    try:
        return session.check_lock(current, cell).verdict if current and current == newest else None
    except LockError:  # a platform that wheels do not know: the state of the cell says so
        return None


def history_of(
    versions: Sequence[LockVersion],
    verdicts: Sequence[LockVerdict | None],
    sections: Sequence[ChangelogSection],
    known: ComparisonFacts,
    *,
    cut: bool,
) -> History:
    """Return the history of these versions of a lock, newest first, each with a verdict.

    `known` has facts for the comparison of versions. `sections` are those of locks/CHANGES.md about the lock; each
    describes the lock that it leads to, and without versions they are the whole history. `cut` means that git has only
    the newest of all commits.
    """
    if not versions:
        return _of_sections(sections, "the lock is in no git repository, or is not committed")
    notes = {each.end: each for each in reversed(sections)}
    judged = [
        (version, LockSummary(version.summary.size, version.summary.unsized, verdict))
        for version, verdict in zip(versions, verdicts, strict=True)
    ]
    steps = []
    for (new, summary), (old, earlier) in zip(judged, [*judged[1:], (None, LockSummary())], strict=True):
        section = notes.get(lock.inputs_hash(new.lock).removeprefix("sha256:")[:8]) if new.lock else None
        found = _difference(old, new.lock, known)
        steps.append(
            LockChange(
                new.date,
                new.commit,
                tuple(_lines(old, new.lock, found, section, cut=cut)),
                pending=new.commit is None,
                page=new.page if found or section else "",
                rejected=changes.rejected_in(section) if section else (),
                lock=summary,
                difference=lock_difference(found, old.commit, earlier) if found and old and old.commit else None,
            )
        )
    missing = "this clone is shallow: git has only the newest commits" if cut else ""
    return History(tuple(steps[:LONGEST]), older=len(steps) > LONGEST, missing=missing)


def _of_sections(sections: Sequence[ChangelogSection], missing: str) -> History:
    steps = [
        LockChange(each.date, None, _plain(each), page=page, rejected=changes.rejected_in(each))
        for each, page in zip(sections, page_names([section.date for section in sections]), strict=True)
    ]
    return History(tuple(steps[:LONGEST]), len(steps) > LONGEST, missing)


def _plain(section: ChangelogSection) -> tuple[str, ...]:
    return tuple(map(changes.plain, section.lines))


def _difference(old: LockVersion | None, new: Lock | None, known: ComparisonFacts) -> Difference | None:
    if old is None or old.lock is None or new is None:
        return None
    before, after = (of_lock(each.cell, each.as_of, each) for each in (old.lock, new))
    return difference(before, after, known)


def _lines(
    old: LockVersion | None, new: Lock | None, found: Difference | None, section: ChangelogSection | None, *, cut: bool
) -> Sequence[str]:
    if new is None:
        return [_UNREAD]
    if section:
        return _plain(section)
    if found:
        return wording.sentences(found)
    if old is None:
        return ["what it was before is not in this shallow clone" if cut else "locked for the first time"]
    return [f"locked anew; before there was {_UNREAD}"]


# The tables of a difference. Pure.

_STEPS = ("major", "minor", "patch")


def version_step(before: str, after: str) -> str:
    """Return the part of a version in which two differ, the largest one; "back to" it where `after` is older.

    Source: the version specifiers specification of PyPA (PEP 440); "patch" is its micro part.
    """
    try:
        old, new = Version(before), Version(after)
    except ValueError:
        return "not comparable"
    if old == new:
        return "another file"
    if old.epoch != new.epoch:
        part = "epoch"
    elif old.public == new.public:
        part = "local label"
    else:
        length = max(len(old.release), len(new.release))
        pairs = zip(*(each.release + (0,) * (length - len(each.release)) for each in (old, new)), strict=True)
        first = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
        part = ("post-release" if old.post != new.post else "pre-release") if first is None else _STEPS[min(first, 2)]
    return f"{part}, back" if new < old else part


def lock_difference(found: Difference, since: str, before: LockSummary) -> LockDifference:
    """Return the tables of a difference of two locks. `before` is the summary of the lock at the commit `since`."""
    had, has = (_sizes(each.lock) for each in (found.before, found.after))
    packages = [_package(component, had, has) for component in (*found.components, *found.packages)]
    return LockDifference(since, before, tuple(packages), tuple(_others(found)))


def _sizes(found: Lock | None) -> dict[str, int | None]:
    return {wheel.name: wheel.file.size for wheel in found.wheels} if found else {}


def _package(each: Change, had: Mapping[str, int | None], has: Mapping[str, int | None]) -> PackageChange:
    step = version_step(each.before, each.after) if each.before and each.after else "added" if each.after else "removed"
    why = each.why or (f"with {', '.join(each.by)}" if each.by else "")
    reason = "; ".join(filter(None, (why, each.cause)))
    return PackageChange(each.name, each.before, each.after, step, had.get(each.name), has.get(each.name), reason)


def _others(found: Difference) -> Iterable[OtherChange]:
    kinds: tuple[tuple[str, Sequence[Change | None]], ...] = (
        ("base", [found.base]),
        ("interpreter", [found.interpreter]),
        ("axis", found.axes),
        ("GPU code", [found.capabilities]),
        ("NVIDIA driver", [found.driver]),
        ("Debian package", found.debs),
        ("override", found.overrides),
        ("variable", found.env),
        ("config", found.config),
        ("copied file", found.files),
    )
    for kind, differing in kinds:
        yield from (OtherChange(kind, each.name, each.before, each.after) for each in differing if each)
    for build in found.rebuilds:
        yield OtherChange("compiled wheel", build.name, None, f"{build.version}: {', '.join(build.because)}")
