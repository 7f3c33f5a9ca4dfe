"""Proposals, with a resolver of a few lines in place of uv: the newest of each, if bounds allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.app.nightly import sentences
from imagegen.app.nightly.propose import Proposal
from imagegen.app.nightly.releases import NewerRelease, ReleaseIndex
from imagegen.core.errors import BaseError
from imagegen.core.progress import Quiet
from imagegen.lock.model import Lock
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.lock_workspace import Chooser
from tests.support.nightly_project import Toy
from tests.support.nightly_week import BASE, Week, day, rule, versions, with_deb
from tests.support.shipped_locks import shipped_lock


def rejected(proposal: Proposal) -> dict[str, tuple[str, str, str]]:
    return {rejected.name: (rejected.stays, rejected.newer, rejected.reason) for rejected in proposal.rejected}


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path, torch="", vllm="", peft="<5")


def test_nothing_new_is_no_other_lock_and_one_resolution(toy: Toy) -> None:
    toy.requested = 0
    proposal = toy.propose()
    assert (proposal.changed, proposal.after, proposal.rejected, toy.requested) == (False, toy.first, (), 1)


def test_the_base_moves_alone_but_not_for_a_new_signature(toy: Toy) -> None:
    toy.base = replace(BASE, archives={"debian/bookworm": day(2)})
    assert toy.propose().after is toy.first
    toy.base = with_deb(BASE, "3.11.2-6+deb12u7")
    proposal = toy.propose()
    assert proposal.changed
    assert proposal.after.base.debs[0].version == "3.11.2-6+deb12u7"


def test_what_cannot_stay_on_the_base_of_before_may_on_that_of_today(toy: Toy, golden: Golden) -> None:
    resolve = toy.resolve

    def on_the_new_alone(previous: Lock | None, upgraded: Sequence[str], bounds: Mapping[str, str]) -> Lock:
        if previous and previous.base == BASE:
            raise BaseError("a package of the old base left the archive")
        return resolve(previous, upgraded, bounds)

    toy.resolve = on_the_new_alone  # type: ignore[method-assign]
    with pytest.raises(BaseError) as caught:
        toy.propose()
    golden.check(caught.value)
    toy.base = with_deb(BASE, "3.11.2-6+deb12u7")
    assert toy.propose().after.base == toy.base


def test_of_a_broken_release_the_one_before_is_taken(toy: Toy, golden: Golden) -> None:
    toy.releases["peft"] += ["2", "3", "4", "5"]
    toy.broken = {("peft", "4"), ("peft", "3")}
    proposal = toy.propose()
    assert versions(proposal.after) == {"torch": "1", "vllm": "1", "peft": "2"}
    golden.check([(rejected.newer, rejected.reason) for rejected in proposal.rejected])


def test_all_broken_moves_nothing(toy: Toy) -> None:
    toy.releases = {name: ["1", "2"] for name in toy.releases}
    toy.broken = {(name, "2") for name in toy.releases}
    proposal = toy.propose()
    assert proposal.after is toy.first
    assert {name: stays for name, (stays, _, _) in rejected(proposal).items()} == versions(toy.first)


def test_where_two_do_not_go_together_torch_goes_first(toy: Toy, golden: Golden) -> None:
    toy.releases = {name: ["1", "2"] for name in toy.releases}
    toy.rules = (rule("r", {"torch": ">=2", "vllm": ">=2"}, {"peft": "<1"}, "They crash."),)
    proposal = toy.propose()
    assert versions(proposal.after) == {"torch": "2", "vllm": "1", "peft": "2"}
    golden.check(rejected(proposal))


def test_a_component_of_the_index_that_is_not_asked_for_is_held_as_well(toy: Toy, golden: Golden) -> None:
    toy.releases["light"] = ["1"]
    before = toy.resolve(toy.first, ["light"], {})
    before = replace(
        before, wheels=tuple(replace(each, because=None) if each.name == "light" else each for each in before.wheels)
    )
    toy.releases["light"] += ["2"]
    toy.releases["torch"] += ["2"]
    toy.broken = {("light", "2")}
    proposal = toy.propose(before)
    assert versions(proposal.after) == {"torch": "2", "vllm": "1", "peft": "1", "light": "1"}
    golden.check(rejected(proposal))


def test_what_cannot_stay_is_an_error(toy: Toy, golden: Golden) -> None:
    toy.rules = (rule("never", {"vllm": ""}, {"peft": ">=9"}, "They are enemies."),)
    with raises("lock-unresolvable") as caught:
        toy.propose()
    golden.check(str(caught.value.why))


def test_releases_of_an_index_as_of_a_time(tmp_path: Path) -> None:
    week = Week(tmp_path, {"peft": ""})
    week.wheel("peft", "1.0")
    week.wheel("peft", "1.1", on=day(2, 9))
    week.wheel("peft", "1.2", on=day(3, 23))
    week.wheel("peft", "1.3", on=day(4, 0))
    week.wheel("peft", "2.0rc1")
    week.wheel("peft", "3.0", tag="cp311-cp311-win_amd64")
    week.wheel("pefter", "9.0")
    (requested,) = week.cell.requirements
    from imagegen.core.wheel_target import WheelTarget

    target = WheelTarget("3.11.2", "x86_64", 36)
    found = ReleaseIndex(day(3), week.settings, Chooser(), Quiet()).of(requested, week.cell, target)
    lacks = "it has no wheel for Python 3.11.2 on x86_64-manylinux_2_36"
    assert found == (
        NewerRelease("3.0", lacks),
        NewerRelease("1.2", today=True),
        NewerRelease("1.1"),
        NewerRelease("1.0"),
    )


def test_an_index_that_does_not_answer_is_reported(tmp_path: Path, golden: Golden) -> None:
    week = Week(tmp_path, {"peft": ""})
    said: list[str] = []

    class Recorder(Quiet):
        say = staticmethod(said.append)

    from imagegen.core.wheel_target import WheelTarget

    (requested,) = week.cell.requirements
    assert (
        ReleaseIndex(day(3), week.settings, Chooser(), Recorder()).of(
            requested, week.cell, WheelTarget("3.11.2", "x86_64", 36)
        )
        == ()
    )
    golden.check(said[0])


def test_each_package_that_changes_is_named(toy: Toy) -> None:
    """A summary only counts more than three."""
    before = shipped_lock("cpu-grpo-cpu-py311")
    gone = ["certifi", "filelock", "packaging", "pyyaml", "regex"]
    after = replace(before, wheels=tuple(wheel for wheel in before.wheels if wheel.name not in gone), record=None)
    text = "\n".join(sentences.sentences(Proposal(toy.cell, "2026-11-28", before, after)))
    assert [name for name in gone if f"{name} " not in text] == []
