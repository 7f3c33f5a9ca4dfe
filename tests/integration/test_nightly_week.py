"""A frozen week: what is proposed on each day is exactly what came, and why the rest stays is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.app.nightly import changes, sentences
from imagegen.app.nightly.propose import Proposal
from imagegen.lock.model import Record
from tests.support.nightly_week import Week, day, rule, versions

pytestmark = pytest.mark.integration

RECORD = Record(1, "zstd", "sha256:" + "0" * 64, ())


def moved(proposal: Proposal) -> dict[str, tuple[str | None, str | None]]:
    assert proposal.before
    old, new = versions(proposal.before), versions(proposal.after)
    return {name: (old.get(name), new.get(name)) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


@pytest.fixture
def week(tmp_path: Path) -> Week:
    week = Week(tmp_path, {"torch": ">=2", "vllm": "", "peft": "<2"})
    week.wheel("torch", "2.1")
    week.wheel("vllm", "0.1", "torch==2.1", "light")
    week.wheel("peft", "1.0")
    week.wheel("light", "1.0")
    return week


def test_each_day_exactly_what_came_moves_and_the_same_day_again_nothing(week: Week) -> None:
    week.wheel("light", "1.1", on=day(2, 9))
    week.wheel("peft", "1.1", "extra", on=day(3, 9))
    week.wheel("extra", "1.0")
    week.wheel("torch", "2.2", on=day(4, 9))
    week.wheel("vllm", "0.2", "torch==2.2", on=day(5, 9))
    came = {
        1: {},
        2: {"light": ("1.0", "1.1")},
        3: {"peft": ("1.0", "1.1"), "extra": (None, "1.0")},
        4: {},
        5: {"torch": ("2.1", "2.2"), "vllm": ("0.1", "0.2"), "light": ("1.1", None)},
        6: {},
    }
    made = replace(week.first(day(1)), record=RECORD)
    for number, expected in came.items():
        proposal = week.propose(made, day(number))
        assert (moved(proposal), proposal.changed) == (expected, bool(expected)), number
        if number in (3, 4):
            again = week.propose(proposal.after, day(number))
            assert again.after is proposal.after
            assert again.rejected == proposal.rejected
        if not expected:
            assert proposal.after is made, "with its record and its time"
        made = proposal.after


def test_a_blocked_update_is_reported_with_the_resolvers_reason(week: Week) -> None:
    week.wheel("torch", "2.2", on=day(2, 9))
    proposal = week.propose(week.first(day(1)), day(3))
    (rejected,) = proposal.rejected
    assert (rejected.name, rejected.stays, rejected.newer) == ("torch", "2.1", "2.2")
    assert "torch==2.1" in rejected.reason
    assert "the cell depends on vllm==0.1" in rejected.reason


def test_a_release_without_a_wheel_is_no_candidate_beside_ones_with_wheels(week: Week) -> None:
    made = week.first(day(1))
    week.index.sdist("light", "1.1", {"PKG-INFO": "Metadata-Version: 2.2\nName: light\nVersion: 1.1\n"})
    week.wheel("peft", "1.1", on=day(2, 9))
    proposal = week.propose(made, day(4))
    assert (moved(proposal), list(proposal.rejected)) == ({"peft": ("1.0", "1.1")}, [])


def test_a_rule_holds_one_back_and_the_others_move(week: Week, golden: Callable[[str, str], None]) -> None:
    week.wheel("light", "1.1", on=day(2, 9))
    week.wheel("vllm", "0.2", "torch==2.1", "light", on=day(2, 9))
    week.wheel("torch", "2.2", on=day(2, 9))
    week.wheel("peft", "1.1", on=day(2, 9))
    week.wheel("peft", "2.0", on=day(2, 9))
    # A rule that is no constraint for a resolver: the verdict on the lock refuses.
    week.rules = (rule("vllm-peft", {"vllm": "==0.2", "light": ">=1.1"}, {"peft": "<1"}, "They crash."),)
    proposal = week.propose(week.first(day(1)), day(3))
    lines = changes.section(proposal, sentences.sentences(proposal)).lines
    golden("nightly-rejected.md", "".join(f"- {line}\n" for line in lines))
