"""A nightly update run over several cells: the files that it writes, and that a failure affects one cell only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from imagegen import lock
from imagegen.app.nightly import changes, update
from imagegen.app.nightly.changes import ChangelogSection
from imagegen.app.nightly.propose import Proposal, RejectedUpdate
from imagegen.app.nightly.run import CellOutcome, LockedCells, LockRepository, Steps, run
from imagegen.compare.difference import ComparisonFacts
from imagegen.core.context import Context
from imagegen.core.errors import SmokeError
from imagegen.lock.model import Record
from imagegen.spec.foundation import Base
from imagegen.spec.model import Cell
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.nightly_project import RECORD, Toy


@dataclass(frozen=True)
class Image:
    digest: str = RECORD.digest
    record: Record = RECORD
    changed: bool = True


class NightlyRun:
    """Cells `a`, `b` and `c`; `b` has nothing new. `registry` holds what is published, `did` is what was done."""

    def __init__(self, root: Path) -> None:
        self.did: list[str] = []
        self.registry: dict[str, str] = {}
        self.fails: dict[str, str] = {}
        self.changed = True
        self.groups = ["a", "b", "c"]
        self.toys = {name: Toy(root / name, torch="", peft="") for name in "abc"}
        self.cells = {name: replace(toy.cell, id=name) for name, toy in self.toys.items()}
        self.lock_files = LockRepository(root / "locks", root / "candidates", ComparisonFacts())
        for name, toy in self.toys.items():
            toy.cell = self.cells[name]
            toy.first = replace(toy.first, cell=name)
            lock.write(toy.first, root / "locks" / f"{name}.toml")
            self.registry[name] = lock.inputs_hash(toy.first)
        for name in "ac":
            self.toys[name].releases["peft"].append("2")

    def path(self, name: str) -> Path:
        return self.lock_files.locks / f"{name}.toml"

    def propose(self, cell: Cell) -> Proposal:
        self._do("propose", cell)
        return self.toys[cell.id].propose(lock.read(self.path(cell.id)))

    def published(self, cells: LockedCells) -> bool:
        return all(self.registry.get(cell.id) == lock.inputs_hash(made) for cell, made in cells)

    def publish(self, cells: LockedCells) -> list[Image]:
        for cell, _ in cells:
            self._do("publish", cell)
        self.registry.update({cell.id: lock.inputs_hash(made) for cell, made in cells})
        return [Image(changed=self.changed) for _ in cells]

    def _do(self, step: str, cell: Cell) -> None:
        self.did.append(f"{step} {cell.id}")
        if self.fails.get(cell.id) == step:
            raise SmokeError(f"{step} of {cell.id} failed", fix="look at it")

    def run(self, *, propose_only: bool = False) -> dict[str, CellOutcome]:
        self.did.clear()
        steps = Steps(self.propose, self.published, self.publish)
        found = run(
            [[self.cells[name] for name in group] for group in self.groups],
            steps,
            self.lock_files,
            propose_only=propose_only,
        )
        return {each.cell: each for each in found}


@pytest.fixture
def nightly(tmp_path: Path) -> NightlyRun:
    return NightlyRun(tmp_path)


def results(found: dict[str, CellOutcome]) -> dict[str, str]:
    return {name: each.result for name, each in found.items()}


def test_what_changed_is_published_and_the_same_again_does_nothing(nightly: NightlyRun) -> None:
    found = nightly.run()
    assert results(found) == {"a": "published", "b": "unchanged", "c": "published"}
    assert found["a"].proposal and found["a"].proposal.after == lock.read(nightly.path("a")), (
        "the reported lock is written"
    )
    assert nightly.did == ["propose a", "publish a", "propose b", "propose c", "publish c"]
    assert lock.read(nightly.path("a")).record == RECORD
    assert [each.cell for each in changes.read((nightly.lock_files.locks / changes.FILE).read_text())] == ["a", "c"]
    before = {path: path.read_bytes() for path in nightly.lock_files.locks.iterdir()}
    again = nightly.run()
    assert results(again) == dict.fromkeys("abc", "unchanged")
    assert again["a"].digest == RECORD.digest
    assert nightly.did == ["propose a", "propose b", "propose c"]
    assert {path: path.read_bytes() for path in nightly.lock_files.locks.iterdir()} == before


def test_a_candidate_that_fails_replaces_no_lock(nightly: NightlyRun) -> None:
    nightly.fails["a"] = "publish"
    before = nightly.path("a").read_bytes()
    found = nightly.run()
    assert results(found) == {"a": "failed", "b": "unchanged", "c": "published"}
    assert nightly.path("a").read_bytes() == before
    candidate = found["a"].candidate
    assert candidate and not candidate.is_relative_to(nightly.lock_files.locks)
    assert {each.name: each.version for each in lock.read(candidate).packages} == {"peft": "2", "torch": "1"}
    assert [each.cell for each in changes.read((nightly.lock_files.locks / changes.FILE).read_text())] == ["c"]
    nightly.fails.clear()
    assert results(nightly.run())["a"] == "published"
    assert not candidate.exists()


def test_a_cell_without_a_proposal_is_reported(nightly: NightlyRun, golden: Golden) -> None:
    nightly.fails["a"] = "propose"
    found = nightly.run()
    assert (found["a"].result, found["a"].proposal, found["a"].candidate) == ("failed", None, None)
    golden.check(str(found["a"].error))


def test_unchanged_but_not_published_is_published(nightly: NightlyRun) -> None:
    del nightly.registry["b"]
    lock.write(replace(lock.read(nightly.path("b")), record=None), nightly.path("b"))
    assert results(nightly.run())["b"] == "published"
    assert lock.read(nightly.path("b")).record == RECORD
    assert "b" not in [each.cell for each in changes.read((nightly.lock_files.locks / changes.FILE).read_text())]


def test_what_was_there_already_is_not_called_published(nightly: NightlyRun) -> None:
    """A lock without its record: that all is there, only the publishing itself finds out."""
    del nightly.registry["b"]
    nightly.changed = False
    lock.write(replace(lock.read(nightly.path("b")), record=None), nightly.path("b"))
    assert results(nightly.run()) == {"a": "published", "b": "unchanged", "c": "published"}
    assert lock.read(nightly.path("b")).record == RECORD


def test_a_proposal_alone_builds_nothing(nightly: NightlyRun) -> None:
    assert results(nightly.run(propose_only=True)) == {"a": "proposed", "b": "unchanged", "c": "proposed"}
    assert nightly.did == ["propose a", "propose b", "propose c"]
    assert lock.read(nightly.path("a")).record is None
    assert results(nightly.run()) == {"a": "published", "b": "unchanged", "c": "published"}


def test_the_images_of_an_index_are_published_together(nightly: NightlyRun) -> None:
    nightly.groups = ["ab", "c"]
    assert results(nightly.run()) == {"a": "published", "b": "published", "c": "published"}
    assert nightly.did[:4] == ["propose a", "propose b", "publish a", "publish b"]
    assert lock.read(nightly.path("a")).record == lock.read(nightly.path("b")).record == RECORD
    assert [each.cell for each in changes.read((nightly.lock_files.locks / changes.FILE).read_text())] == ["a", "c"]
    assert results(nightly.run()) == dict.fromkeys("abc", "unchanged")


@pytest.mark.parametrize("step", ["propose", "publish"])
def test_nothing_of_an_index_is_published_where_one_image_fails(nightly: NightlyRun, step: str) -> None:
    nightly.groups = ["ab", "c"]
    nightly.fails["b"] = step
    before = nightly.path("a").read_bytes()
    found = nightly.run()
    assert results(found) == {"a": "failed", "b": "failed", "c": "published"}
    assert found["a"].error is found["b"].error
    assert nightly.path("a").read_bytes() == before
    assert (found["a"].candidate is not None, found["b"].candidate) == (step == "publish", None)
    if step == "publish":  # an earlier run's candidate is not the lock that fails now
        nightly.fails["b"] = "propose"
        assert nightly.run()["a"].candidate is None


def test_a_bug_is_not_taken_for_a_failed_cell(nightly: NightlyRun) -> None:
    nightly.toys.clear()
    with pytest.raises(KeyError):
        nightly.run()


def step(start: str, end: str, *lines: str, date: str = "2026-06-02", cell: str = "x") -> ChangelogSection:
    return ChangelogSection(date, cell, start, end, lines)


def test_a_run_of_the_same_day_replaces_its_section_and_a_further_step_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / changes.FILE
    changes.add(path, step("1", "2", "a 1 -> 2", date="2026-06-01"))
    changes.add(path, step("2", "3", "a 2 -> 3", "b stays 1"))
    changes.add(path, step("2", "4", "a 2 -> 4"))
    changes.add(path, step("4", "5", "a 4 -> 5"))
    changes.add(path, step("7", "8", "c", cell="w"))
    assert changes.read(path.read_text()) == (
        step("7", "8", "c", cell="w"),
        step("2", "5", "a 4 -> 5", "a 2 -> 4"),
        step("1", "2", "a 1 -> 2", date="2026-06-01"),
    )


def test_markup_of_others_stays_text(nightly: NightlyRun, golden: Golden) -> None:
    rejected = RejectedUpdate("peft", "1", "2", "<img src=x> *and* `more`\nlines [a](b)")
    proposal = replace(nightly.propose(nightly.cells["b"]), rejected=(rejected,))
    (line,) = changes.section(proposal, []).lines
    golden.check(line)


def test_a_file_of_another_form_is_not_touched(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    path = tmp_path / changes.FILE
    text = changes.dumps([step("1", "2", "a 1 -> 2")]) + "\nby hand\n"
    path.write_text(text)
    with raises("lock-changelog-invalid") as caught:
        changes.add(path, step("2", "3"))
    assert str(caught.value.where).endswith("CHANGES.md:11")
    assert path.read_text() == text
    golden("nightly-changes.md", changes.dumps([step("1", "2", "a 1 -> 2"), step("2", "3", "b", date="2026-06-03")]))


def test_a_base_is_resolved_once_for_each_platform(nightly: NightlyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def resolve(base: Base, platform: str, *_: object) -> tuple[str, str]:
        asked.append((base.name, platform))
        return asked[-1]

    monkeypatch.setattr("imagegen.image.base.resolve", resolve)
    cell = nightly.cells["a"]
    arm64 = replace(cell, axes={**cell.axes, "platform": "linux/arm64"})
    context = cast("Context", SimpleNamespace(settings=None, progress=None))
    bases: update.Bases = {}
    found = [update.current_base(bases, each, context) for each in (cell, arm64, cell)]
    assert found == [(cell.base.name, each.platform) for each in (cell, arm64, cell)]
    assert len(asked) == 2
