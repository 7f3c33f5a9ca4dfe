"""Nightly updates of an image with several environments: its lock is joined from the updated locks of their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.app.make_locks import lock_image
from imagegen.app.nightly import changes, sentences, update
from imagegen.app.nightly.propose import Proposal
from imagegen.app.nightly.run import CellOutcome, LockedCells
from imagegen.app.project import ProjectContext
from imagegen.app.publisher import Publisher, PublishOptions
from imagegen.app.session import Session
from imagegen.core.data import shipped
from imagegen.core.errors import SmokeError
from imagegen.core.progress import Quiet
from imagegen.lock import inputs_hash, loads_combined, read, read_text, write
from imagegen.lock.make.options import LockOptions
from imagegen.lock.model import Lock, Record
from imagegen.spec.model import Cell
from tests.support.golden import Golden
from tests.support.nightly_project import RECORD
from tests.support.project import Project

CELL, PARTS = "engines-cu130-py311", ("hopper-vllm-cu130-py311", "hopper-sglang-cu130-py311")
MATRIX = """\
images:
  engines:
    description: vLLM and SGLang side by side.
    purpose: Tests.
    environments:
      vllm: {cell: hopper-vllm-cu130-py311, because: Tests.}
      rewards: {cell: hopper-sglang-cu130-py311, because: Tests.}
    default: vllm
"""
AS_OF = "2026-11-26T08:00:00Z"


class Image:
    record: Record = RECORD
    digest: str = RECORD.digest
    changed = True


class Engines:
    """A project whose cells have the shipped locks. `moves` are cells of which a package moves; `fails` raise then."""

    def __init__(self, root: Path) -> None:
        self.project = Project(root)
        (root / "matrices/engines.yaml").write_text(MATRIX)
        for name in PARTS:
            write(replace(read(shipped("locks") / f"{name}.toml"), record=None), self.path(name))
        self.moves: Mapping[str, str] = {}
        self.fails: set[str] = set()
        self.published: list[str] = []
        self.lock()

    def path(self, cell: str) -> Path:
        return self.project.root / "locks" / f"{cell}.toml"

    def session(self) -> Session:
        return Session(ProjectContext(self.project.env, self.project.root, Quiet()))

    def lock(self) -> None:
        session = self.session()
        lock_image(session, session.matrix.select_one("engines"), LockOptions(), record=False)

    def propose(self, session: Session, as_of: str, _: object, cell: Cell) -> Proposal:
        before = session.lock_files.find(cell)
        assert before
        version = self.moves.get(cell.id)
        return Proposal(cell, as_of, before, with_rich(before, version) if version else before)

    def publish(self, _: object, cells: LockedCells) -> Sequence[Image]:
        names = [cell.id for cell, _ in cells]
        if self.fails & set(names):
            raise SmokeError("a check failed", fix="look at it")
        self.published += names
        return [Image() for _ in cells]

    def nightly(self, *names: str, propose_only: bool = False) -> dict[str, CellOutcome]:
        session = self.session()
        groups = [(session.matrix.select_one(name),) for name in names]
        publisher = None if propose_only else Publisher(session, "127.0.0.1:1/x", PublishOptions())
        return {each.cell: each for each in update.update_locks(session, groups, AS_OF, publisher)}

    def rows(self) -> dict[str, str]:
        return {row.name: row.lock for row in loads_combined(read_text(self.path(CELL))).environments}

    def section(self) -> tuple[str, ...]:
        written = changes.read((self.project.root / "locks" / changes.FILE).read_text())
        return next(each.lines for each in written if each.cell == CELL)


def with_rich(before: Lock, version: str) -> Lock:
    """Return the lock with another version of a package that no rule is about."""
    (rich,) = (each for each in before.wheels if each.name == "rich")
    file = replace(rich.file, filename=f"rich-{version}-py3-none-any.whl", sha256="1" * 64, path=None)
    moved = replace(rich, version=version, file=file)
    wheels = tuple(moved if each is rich else each for each in before.wheels)
    return replace(before, wheels=wheels, as_of=AS_OF, record=None)


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    found = Engines(tmp_path / "project")
    monkeypatch.setattr(update, "propose_cell", found.propose)
    monkeypatch.setattr(update, "publish_images", found.publish)
    monkeypatch.setattr(update, "is_published", lambda *_: True)
    return found


def results(found: Mapping[str, CellOutcome]) -> dict[str, str]:
    return {name: each.result for name, each in found.items()}


def test_the_image_is_joined_from_what_its_cells_are_after_the_same_run(engines: Engines) -> None:
    before = inputs_hash(read(engines.path(PARTS[1])))
    assert engines.rows()["rewards"] == before
    engines.moves = {PARTS[1]: "99.1"}
    found = engines.nightly("engines", *PARTS)
    assert [*results(found).items()] == [(PARTS[0], "published"), (PARTS[1], "published"), (CELL, "published")]
    assert engines.published[-1] == CELL
    assert engines.rows()["rewards"] == inputs_hash(read(engines.path(PARTS[1]))) != before
    assert loads_combined(read_text(engines.path(CELL))).record == RECORD
    lines = engines.section()
    assert any(line.startswith("rewards: rich ") and line.endswith(" -> 99.1") for line in lines), lines
    assert not [line for line in lines if line.startswith("rich ")]
    proposal = found[CELL].proposal
    assert proposal
    assert sentences.sentences(proposal)[0] == lines[0]
    engines.moves, engines.published = {}, []
    files = {path: path.read_bytes() for path in engines.path(CELL).parent.iterdir()}
    assert set(results(engines.nightly("engines", *PARTS)).values()) == {"unchanged"}
    assert engines.published == []
    assert {path: path.read_bytes() for path in engines.path(CELL).parent.iterdir()} == files


def test_selecting_the_image_updates_none_of_its_cells(engines: Engines, golden: Golden) -> None:
    engines.moves = {PARTS[1]: "99.1"}
    locks = [read(engines.path(name)) for name in PARTS]
    engines.nightly("engines")  # it has no record yet: nothing moved, and it is published
    assert (engines.published, [read(engines.path(name)) for name in PARTS]) == ([CELL], locks)
    assert not (engines.project.root / "locks" / changes.FILE).exists()
    start = engines.rows()["rewards"]
    engines.nightly(PARTS[1])
    assert engines.rows()["rewards"] == start
    found = engines.nightly("engines", propose_only=True)
    assert results(found) == {CELL: "proposed"}
    end = engines.rows()["rewards"]
    assert end == inputs_hash(read(engines.path(PARTS[1])))
    start, end = (digest.removeprefix("sha256:")[:8] for digest in (start, end))
    golden.check(engines.section(), start=start, end=end)
    proposal = found[CELL].proposal
    assert proposal
    section = changes.section(proposal, [])
    assert section.start != section.end, "the step begins at the lock file, not at the moved locks"


def test_a_changed_entry_is_named(engines: Engines, golden: Golden) -> None:
    file = engines.project.root / "matrices/engines.yaml"
    file.write_text(MATRIX.replace("py311, because: Tests.}\n    default", "py311, because: Rewards.}\n    default"))
    assert results(engines.nightly("engines", propose_only=True)) == {CELL: "proposed"}
    golden.check(engines.section())


def test_a_candidate_that_fails_replaces_no_lock(engines: Engines) -> None:
    engines.moves, engines.fails = {PARTS[1]: "99.1"}, {CELL}
    before = engines.path(CELL).read_bytes()
    found = engines.nightly("engines", *PARTS)
    assert results(found) == {PARTS[0]: "published", PARTS[1]: "published", CELL: "failed"}
    assert engines.path(CELL).read_bytes() == before
    candidate = found[CELL].candidate
    assert candidate and not candidate.is_relative_to(engines.project.root / "locks")
    assert loads_combined(candidate.read_text()).environments[1].lock == inputs_hash(read(engines.path(PARTS[1])))
    engines.moves, engines.fails = {}, set()
    assert results(engines.nightly("engines")) == {CELL: "published"}
    assert not candidate.exists()


def test_a_cell_that_fails_stays_as_it_was_in_the_image(engines: Engines) -> None:
    engines.moves, engines.fails = dict.fromkeys(PARTS, "99.1"), {PARTS[1]}
    rows = engines.rows()
    found = engines.nightly("engines", *PARTS)
    assert results(found) == {PARTS[0]: "published", PARTS[1]: "failed", CELL: "published"}
    assert {name for name, digest in engines.rows().items() if digest != rows[name]} == {"vllm"}


def test_a_missing_lock_and_another_base_fail_the_image_alone(engines: Engines) -> None:
    path = engines.path(PARTS[1])
    other = read(path)
    deb = replace(other.base.debs[0], sha256="0" * 64)
    write(replace(other, base=replace(other.base, debs=(deb, *other.base.debs[1:]))), path)
    found = engines.nightly("engines", PARTS[0])
    assert results(found) == {PARTS[0]: "published", CELL: "failed"}
    error = found[CELL].error
    assert error
    assert error.code == "lock-environments-differ"
    path.write_text("nothing")
    error = engines.nightly("engines")[CELL].error
    assert error
    assert error.code == "lock-malformed"


def test_other_dates_of_the_archives_are_the_same_base(engines: Engines) -> None:
    path = engines.path(PARTS[1])
    other = read(path)
    later = dict.fromkeys(other.base.archives, AS_OF)
    assert other.base.archives != later
    write(replace(other, base=replace(other.base, archives=later)), path)
    engines.lock()
    assert engines.rows()["rewards"] == inputs_hash(read(path))
