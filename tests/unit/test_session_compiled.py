"""What a session keeps between runs: the matrix, metadata, locks and verdicts; any byte that changes counts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen import lock
from imagegen import spec as matrix
from imagegen.app.entries import trial
from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.compat import metadata
from imagegen.core import compiled
from imagegen.core.data import shipped
from imagegen.core.errors import LockError, MatrixErrors
from imagegen.core.progress import Quiet

MATRIX = """\
images:
  small:
    description: A small image.
    purpose: For tests.
    base: debian12
    components:
      numpy:
        because: Tests.
"""
CPU = "cpu-grpo-cpu-py311"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "matrices").mkdir(parents=True)
    (tmp_path / "project" / "matrices" / "small.yaml").write_text(MATRIX)
    (tmp_path / "project" / "locks").mkdir()
    return tmp_path / "project"


def session(project: Path, **env: str) -> Session:
    return Session(ProjectContext({"XDG_CACHE_HOME": str(project.parent / "cache"), **env}, project, Quiet()))


def purpose(project: Path, **env: str) -> str:
    return session(project, **env).matrices.matrix.select_one("small").purpose


def test_a_second_run_parses_no_matrix(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = session(project).matrices.matrix
    monkeypatch.setattr(matrix, "load", lambda _: pytest.fail("parsed again"))
    assert session(project).matrices.matrix == first


def test_projects_without_matrices_share_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    projects = [tmp_path / name for name in ("a", "b")]
    for each in projects:
        each.mkdir()
    first = session(projects[0])
    sound = first.lock_files.fresh(first.matrices.matrix.select_one(CPU))
    monkeypatch.setattr(matrix, "load", lambda _: pytest.fail("parsed again"))
    monkeypatch.setattr(lock, "stale", lambda *_: pytest.fail("checked again"))
    second = session(projects[1])
    assert second.lock_files.fresh(second.matrices.matrix.select_one(CPU)) == sound


def test_a_build_is_known_by_its_lock_the_matrix_and_the_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "locks" / f"{CPU}.toml").write_bytes((shipped("locks") / f"{CPU}.toml").read_bytes())

    def inputs() -> str | None:
        own = session(project)
        cell = own.matrices.matrix.select_one(CPU)
        found = own.lock_files.find(cell)
        assert found
        assert own.lock_files.digest_of_inputs(replace(found), cell) is None  # not the lock that was read
        return own.lock_files.digest_of_inputs(found, cell)

    seen = [inputs()]
    assert inputs() == seen[0]
    with (project / "locks" / f"{CPU}.toml").open("a") as file:
        file.write("\n")
    seen.append(inputs())
    (project / "matrices" / "small.yaml").write_text(MATRIX.replace("For tests", "For more"))
    seen.append(inputs())
    monkeypatch.setattr(compiled, "digest_of_code", lambda: "other")
    seen.append(inputs())
    assert None not in seen
    assert len(set(seen)) == 4


def test_an_entry_that_is_tried_replaces_no_kept_result(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = session(project)
    before = first.matrices.matrix
    with trial(first, project / "matrices" / "other.yaml", MATRIX.replace("small", "other")) as tried:
        assert tried.matrices.matrix.select("other")
    monkeypatch.setattr(matrix, "load", lambda _: pytest.fail("parsed again"))
    assert session(project).matrices.matrix == before


def test_a_changed_byte_counts_whatever_its_time_and_size(project: Path) -> None:
    file = project / "matrices" / "small.yaml"
    before = file.stat()
    assert purpose(project) == "For tests."
    file.write_text(MATRIX.replace("tests", "teams"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, purpose(project)) == (before.st_size, "For teams.")


def test_an_error_of_a_matrix_comes_each_time(project: Path) -> None:
    (project / "matrices" / "other.yaml").write_text("images: 1")
    for _ in range(2):
        with pytest.raises(MatrixErrors):
            _ = session(project).matrices.matrix


def test_a_link_out_of_the_project_is_refused_after_its_bytes_were_read(project: Path, tmp_path: Path) -> None:
    assert purpose(project)
    file = project / "matrices" / "small.yaml"
    file.rename(tmp_path / "outside.yaml")
    file.symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(MatrixErrors):
        _ = session(project).matrices.matrix


def test_a_session_without_a_place_for_the_cache_loads_the_matrix(project: Path) -> None:
    assert Session(ProjectContext({}, project, Quiet())).matrices.matrix.select("small")


def test_a_cache_that_cannot_be_written_changes_nothing(project: Path) -> None:
    (project.parent / "cache").write_text("a file")
    assert purpose(project) == "For tests."


def test_a_damaged_cache_is_made_again(project: Path) -> None:
    assert purpose(project)
    folder = project.parent / "cache" / "imagegen" / "compiled"
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    assert purpose(project) == "For tests."


def test_metadata_and_answers_are_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(project)
    cells = one.matrices.matrix.select("small")
    answers = one.judge.cell_answers(cells)
    known = one.matrices.knowledge_files.metadata.of("numpy")
    assert known
    monkeypatch.setattr("imagegen.spec.cell_facts.cell_answers", lambda *_: pytest.fail("judged again"))
    monkeypatch.setattr(metadata, "load", lambda *_: pytest.fail("parsed again"))
    two = session(project)
    again = two.matrices.knowledge_files.metadata.of("numpy")
    assert two.judge.cell_answers(cells) == answers
    assert again
    assert again.package == known.package


def test_a_lock_is_checked_again_when_a_byte_of_it_changes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (shipped("locks") / f"{CPU}.toml").read_text()
    path = project / "locks" / f"{CPU}.toml"
    path.write_text(text)
    cell = session(project).matrices.matrix.select_one(CPU)
    sound = session(project).lock_files.fresh(cell)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "loads", lambda *_: pytest.fail("parsed again"))
        patch.setattr(lock, "stale", lambda *_: pytest.fail("checked again"))
        assert session(project).lock_files.fresh(cell) == sound
    path.write_text(text.replace('image = "cpu-grpo"', 'image = "cpu-grpx"'))
    with pytest.raises(LockError) as caught:
        session(project).lock_files.fresh(cell)
    assert caught.value.code == "lock-contradicts-matrix"


def test_a_lock_that_was_not_read_from_its_file_is_checked_by_itself(project: Path) -> None:
    one = session(project)
    cell = one.matrices.matrix.select_one(CPU)
    found = one.lock_files.fresh(cell)
    edited = lock.loads(lock.dumps(found).replace('image = "cpu-grpo"', 'image = "cpu-grpx"'))
    assert one.lock_files.check(found, cell).contradictions == ()
    assert one.lock_files.check(edited, cell).contradictions == ("image",)
