"""The tables of a difference of two locks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from imagegen.compare.difference import Change, Difference
from imagegen.compat import Verdict


@dataclass(frozen=True)
class LockVerdict:
    """The verdict of today's rules on a lock. `rules` reject it if the verdict is a conflict, else only warn of it."""

    name: Literal["no known conflict", "conflict", "not judged"]
    rules: tuple[str, ...] = ()  # ids
    reason: str = ""

    @property
    def words(self) -> str:
        """The verdict as one line."""
        verb = "refused by" if self.name == "conflict" else "warnings of"
        cause = f"{verb} {', '.join(self.rules)}" if self.rules else ""
        return ": ".join(filter(None, (self.name, cause, self.reason)))

    @classmethod
    def of(cls, verdict: Verdict) -> LockVerdict:
        refused = verdict.answer == "incompatible"
        counted = [conflict for conflict in verdict.conflicts if not refused or conflict.severity == "error"]
        rules = {rule.id: rule for refusal in counted for rule in refusal.rules}
        reason = " ".join(dict.fromkeys(rule.because for rule in rules.values()))
        return cls("conflict" if refused else "no known conflict", tuple(rules), reason)


NOT_JUDGED = LockVerdict("not judged", reason="this imagegen does not read the format of that lock")


@dataclass(frozen=True)
class LockSummary:
    """The size of a lock and the verdict on it.

    `size` is the sum of its wheels in bytes, None without any; `unsized` counts packages without a known size.
    `verdict` is None if this imagegen does not read the format of the lock.
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


_STEPS = ("major", "minor", "patch")


def version_step(before: str, after: str) -> str:
    """Return the largest part in which two versions differ, with "back" if `after` is older.

    Source: PyPA's version specifiers specification (PEP 440); "patch" is its micro part.
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
        pairs = zip(*(version.release + (0,) * (length - len(version.release)) for version in (old, new)), strict=True)
        first = next((number for number, (old_number, other) in enumerate(pairs) if old_number != other), None)
        part = ("post-release" if old.post != new.post else "pre-release") if first is None else _STEPS[min(first, 2)]
    return f"{part}, back" if new < old else part


def lock_difference(tables: Difference, since: str, before: LockSummary) -> LockDifference:
    """Return the tables of a difference of two locks. `before` is the summary of the lock at the commit `since`."""
    sizes_before, sizes_after = (
        {wheel.name: wheel.file.size for wheel in side.lock.wheels} if side.lock else {}
        for side in (tables.before, tables.after)
    )
    packages = [_package(component, sizes_before, sizes_after) for component in (*tables.components, *tables.packages)]
    return LockDifference(since, before, tuple(packages), tuple(_others(tables)))


def _package(
    change: Change, sizes_before: Mapping[str, int | None], sizes_after: Mapping[str, int | None]
) -> PackageChange:
    step = (
        version_step(change.before, change.after)
        if change.before and change.after
        else "added"
        if change.after
        else "removed"
    )
    return PackageChange(
        change.name,
        change.before,
        change.after,
        step,
        sizes_before.get(change.name),
        sizes_after.get(change.name),
        change.reason,
    )


def _others(tables: Difference) -> Iterable[OtherChange]:
    kinds: tuple[tuple[str, Sequence[Change | None]], ...] = (
        ("base", [tables.base]),
        ("interpreter", [tables.interpreter]),
        ("axis", tables.axes),
        ("GPU code", [tables.capabilities]),
        ("NVIDIA driver", [tables.driver]),
        ("Debian package", tables.debs),
        ("override", tables.overrides),
        ("variable", tables.env),
        ("config", tables.config),
        ("copied file", tables.files),
    )
    for kind, differing in kinds:
        yield from (OtherChange(kind, change.name, change.before, change.after) for change in differing if change)
    for build in tables.rebuilds:
        yield OtherChange("compiled wheel", build.name, None, f"{build.version}: {', '.join(build.because)}")
