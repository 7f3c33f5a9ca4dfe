"""Pages of differences: steps of versions, names of pages, sizes, and the chart."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen import lock
from imagegen.app import differences, lock_difference, lock_history
from imagegen.app.differences import CellHistory
from imagegen.app.lock_difference import LockSummary, LockVerdict, PackageChange
from imagegen.app.lock_history import History, LockChange
from imagegen.app.nightly import changes
from imagegen.app.nightly.changes import ChangelogSection
from imagegen.app.nightly.propose import RejectedUpdate
from imagegen.compat import Conflict, Verdict
from imagegen.compat.rule import Rule
from tests.support.golden import Golden
from tests.support.report_samples import HISTORY
from tests.support.timing import within
from tests.support.tiny_lock import LOCK

RULE = Rule("a", {"torch": "<2"}, {}, {"numpy": ">=2"}, "A.", "s", "2026-01-01", "error", "measured", "f")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("1.9.3", "2.0", "major"),
        ("2.0", "2.1.5", "minor"),
        ("2.1", "2.1.1", "patch"),
        ("2.1.1.0", "2.1.1.4", "patch"),
        ("2.1.1", "1.9", "major, back"),
        ("1!1.0", "2!1.0", "epoch"),
        ("2.0rc1", "2.0", "pre-release"),
        ("2.0", "2.0.post1", "post-release"),
        ("2.0+cu128", "2.0+cu130", "local label"),
        ("2.0+cu128", "2.1+cu130", "minor"),
        ("2.0", "2.0", "another file"),
        ("2.0", "none", "not comparable"),
    ],
)
def test_the_step_of_a_version_is_its_largest_part(before: str, after: str, expected: str) -> None:
    assert lock_difference.version_step(before, after) == expected


RELEASES = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@given(RELEASES, RELEASES)
def test_a_step_back_is_the_step_the_other_way(one: str, other: str) -> None:
    low, high = sorted((one, other), key=Version)
    forward, back = lock_difference.version_step(low, high), lock_difference.version_step(high, low)
    assert not forward.endswith(", back")
    assert back == (forward if Version(low) == Version(high) else f"{forward}, back")


@given(st.lists(st.sampled_from(["2026-11-20", "2026-11-21", "2026-11-22"]), max_size=12))
def test_pages_have_one_name_each_that_later_changes_keep(oldest_first: list[str]) -> None:
    names = lock_history.page_names(oldest_first[::-1])
    assert len(set(names)) == len(names)
    assert all(name.startswith(day) for name, day in zip(names[::-1], oldest_first, strict=True))
    for length in range(len(oldest_first)):
        assert lock_history.page_names(oldest_first[:length][::-1]) == names[len(names) - length :]


WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


@given(
    WORDS, st.sampled_from(["2.4.6", "as it is"]), st.sampled_from(["", "3.0"]), st.text("ab:, *<not3.", max_size=30)
)
def test_rejected_updates_are_read_back_from_a_section(name: str, stays: str, newer: str, reason: str) -> None:
    rejected = RejectedUpdate(name, stays, newer, " ".join(f"why {reason}".split()))
    escaped = re.sub(r"([\\`*<\[])", r"\\\1", changes.rejection(rejected))
    section = ChangelogSection("2026-11-20", "a", "0" * 8, "1" * 8, ("torch 2.12 -\\> 2.13", escaped))
    assert changes.rejected_in(section) == (rejected,)


@pytest.mark.fault(
    "Matrices, rules, locks", "a line of locks/CHANGES.md on which a pattern would backtrack", "read at once"
)
def test_long_lines_of_a_changelog_are_read_at_once() -> None:
    lines = ("a stays b, not c" * 4000, "a stays b: " * 4000, "a stays " * 8000)
    with within(1):
        rejected = changes.rejected_in(ChangelogSection("2026-11-20", "a", "0" * 8, "1" * 8, lines))
    assert [(update.name, update.stays) for update in rejected] == [("a", "b")]


def test_a_lock_of_another_format_has_the_same_sum_of_wheels() -> None:
    assert lock_history.scanned_summary(lock.dumps(LOCK)) == lock_history.summary_of(LOCK)
    assert lock_history.scanned_summary("") == LockSummary(None, 0, None)
    assert lock_history.scanned_summary("\n[[wheel]]\nsize = 7\n\n[[wheel]]\nname = 'a'\n") == LockSummary(7, 1, None)


def test_a_verdict_names_what_refuses_else_what_warns() -> None:
    warning = replace(RULE, id="b", severity="warning", because="B.")
    both = (Conflict((RULE,), {}), Conflict((warning,), {}))
    assert LockVerdict.of(Verdict("incompatible", both)) == LockVerdict("conflict", ("a",), "A.")
    assert LockVerdict.of(Verdict("unknown", both[1:])) == LockVerdict("no known conflict", ("b",), "B.")
    assert LockVerdict.of(Verdict("compatible")) == LockVerdict("no known conflict")


@pytest.mark.parametrize(
    ("change", "growth"),
    [
        (PackageChange("a", "1", "2", "major", 10, 7), -3),
        (PackageChange("a", None, "2", "added", None, 7), 7),
        (PackageChange("a", "1", None, "removed", 10, None), -10),
        (PackageChange("a", "1", "2", "major", 10, None), None),
    ],
)
def test_a_wheel_grows_where_both_sizes_are_known(change: PackageChange, growth: int | None) -> None:
    assert change.growth == growth


@given(st.lists(st.none() | st.integers(0, 10**11), min_size=1, max_size=24))
def test_a_chart_has_a_point_for_each_lock_and_larger_ones_higher(sizes: list[int | None]) -> None:
    steps = tuple(LockChange("2026-11-20", "0" * 40, (), lock=LockSummary(size)) for size in reversed(sizes))
    chart = differences.chart("a", History(steps))
    assert chart
    assert [point["size"] for point in chart["points"]] == sizes
    assert [0 < point["x"] < 100 for point in chart["points"]] == [True] * len(sizes)
    assert sorted(point["x"] for point in chart["points"]) == [point["x"] for point in chart["points"]]
    drawn = [
        (point["size"], point["y"]) for point in chart["points"] if point["size"] is not None and point["y"] is not None
    ]
    assert len(drawn) == len(sizes) - sizes.count(None)
    assert all(0 <= y <= chart["height"] for _, y in drawn)
    assert all((y > other_y) == (size < other) for size, y in drawn for other, other_y in drawn if size != other)
    assert len(chart["lines"]) == max(len(drawn) - 1, 0)


def test_a_history_without_locks_has_no_chart() -> None:
    assert (
        differences.chart("a", History((LockChange("2026-11-20", None, ("torch is newer",), page="2026-11-20"),)))
        is None
    )


def test_pages_lead_to_their_neighbours_and_the_newest_to_the_files(golden: Golden) -> None:
    newest, middle, oldest = differences.pages(CellHistory("a", HISTORY, (("lock", "a.toml"),)))
    assert (newest["later"], newest["earlier"]) == (None, ("a-2026-11-13-2.html", "2026-11-13 (2)"))
    assert (middle["later"], middle["earlier"]) == (
        ("a-uncommitted.html", "2026-11-20 (not committed)"),
        ("a-2026-11-13.html", "2026-11-13"),
    )
    assert (oldest["later"], oldest["earlier"]) == (("a-2026-11-13-2.html", "2026-11-13 (2)"), None)
    assert [page["downloads"] for page in (newest, middle, oldest)] == [(("lock", "a.toml"),), (), ()]
    assert [[each.name for each in rows] for rows in (newest["moved"], newest["added"], newest["removed"])] == [
        ["torch", "deep-ep"], ["numpy"], ["pandas"],
    ]  # fmt: skip
    assert (newest["growth"], middle["growth"], oldest["growth"]) == (210_000_000, 0, None)
    assert newest["before"] and newest["after"]
    golden.check([page["command"] for page in (newest, middle, oldest)], newest["after"].name)
    assert newest["before"].name == "conflict"
