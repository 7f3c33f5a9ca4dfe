"""Commands without names take the cells whose image or lock is in the project, and no shipped ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagegen.cli import nightly_command
from imagegen.core.data import shipped
from imagegen.core.errors import LockError
from tests.support.command_line import Run

CELL, OTHER = "cpu-grpo-cpu-py311", "sb3-maskable-cpu-py311"


@pytest.fixture
def updated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that a nightly update takes; it updates none."""
    cells: list[str] = []

    def update_locks(_: Any, groups: list[tuple[Any, ...]], *more: Any) -> tuple[()]:
        cells.extend(cell.id for group in groups for cell in group)
        return ()

    monkeypatch.setattr(nightly_command, "update_locks", update_locks)
    return cells


def files(project: Path) -> set[Path]:
    return {path.relative_to(project) for path in project.rglob("*") if "cache" not in path.parts}


def lock_here(project: Path, cell: str = CELL) -> None:
    (project / "locks").mkdir()
    shutil.copy(shipped("locks") / f"{cell}.toml", project / "locks")


@pytest.mark.parametrize("words", [("nightly", "--propose-only"), ("nightly",), ("matrix", "--github")])
def test_a_project_without_locks_has_nothing_to_update(
    run: Run, tmp_path: Path, updated: list[str], words: tuple[str, ...]
) -> None:
    before = files(tmp_path)
    ended = run(*words)
    assert (ended.code, ended.out, updated) == (LockError.exit_code, "", [])
    assert "error[lock-missing]" in ended.err
    assert f"`imagegen {' '.join(words if words[0] == 'matrix' else words[:1])} GLOB`" in ended.err
    assert files(tmp_path) == before


def test_shipped_cells_are_taken_by_name(run: Run, updated: list[str]) -> None:
    assert run("nightly", "--propose-only", "sb3-maskable").code == 0
    assert updated == [OTHER]
    assert f'"{OTHER}"' in run("matrix", "--github", "sb3-maskable").out


def test_only_cells_with_a_lock_in_the_project_are_taken(run: Run, tmp_path: Path, updated: list[str]) -> None:
    lock_here(tmp_path)
    assert run("nightly", "--propose-only").code == 0
    assert updated == [CELL]
    said = dict(line.split("=", 1) for line in run("matrix", "--github").out.splitlines())
    (row,) = json.loads(said["cells"])["include"]
    # Its shipped sibling for arm64 is not the project's.
    assert (row["cell"], row["locks"], row["platforms"], said["gpu"]) == (CELL, f"locks/{CELL}.toml", "", "")


def test_a_shipped_cell_of_another_platform_is_taken_only_by_name(run: Run, tmp_path: Path, updated: list[str]) -> None:
    lock_here(tmp_path)
    ended = run("nightly", "--propose-only", "--platform", "all")
    assert (ended.code, updated) == (LockError.exit_code, [])
    assert f"error[lock-missing]: {tmp_path}/locks/{CELL}-linux-arm64.toml" in ended.err
    assert run("nightly", CELL, "--propose-only", "--platform", "all").code == 0
    assert updated == [CELL, f"{CELL}-linux-arm64"]


def rows(run: Run, *words: str) -> list[str]:
    return [row["cell"] for row in json.loads(run(*words, "--json").out)]


def test_commands_without_names_take_images_and_locks_of_the_project(run: Run, tmp_path: Path) -> None:
    """The image `odd` has an entry in the project; the other cell has a lock there."""
    assert rows(run, "list") == rows(run, "matrix") == ["odd-cpu-py311"]
    lock_here(tmp_path, f"{CELL}-linux-arm64")
    assert rows(run, "list") == rows(run, "matrix") == [f"{CELL}-linux-arm64", "odd-cpu-py311"]
    report = json.loads(run("report", "-o", str(tmp_path / "site"), "--json").out)
    assert [*report["cells"]] == [f"{CELL}-linux-arm64", "odd-cpu-py311"]
    for command in ("list", "matrix"):
        assert {CELL, OTHER, "odd-cpu-py311"} <= {*rows(run, command, "--all")}
        assert run(command, "--all", "odd").code == 64


def test_a_project_without_cells_shows_the_shipped_ones(run: Run, tmp_path: Path) -> None:
    (tmp_path / "matrices" / "odd.yaml").unlink()
    assert rows(run, "list") == rows(run, "list", "--all")
    assert rows(run, "matrix") == rows(run, "matrix", "*")


def test_an_equal_copy_of_a_shipped_image_is_the_projects(run: Run, tmp_path: Path) -> None:
    (file,) = (path for path in shipped("matrices").rglob("*.yaml") if "\n  sb3-maskable:\n" in path.read_text())
    shutil.copy(file, tmp_path / "matrices")
    assert OTHER in rows(run, "list")


def test_a_check_without_names_takes_the_locks_of_the_project(run: Run, tmp_path: Path) -> None:
    assert run("lock", "--check").code == LockError.exit_code
    lock_here(tmp_path)
    ended = run("lock", "--check", "--json")
    assert (ended.code, [row["cell"] for row in json.loads(ended.out)]) == (0, [CELL])
    lock = tmp_path / "locks" / f"{CELL}.toml"
    lock.write_text(lock.read_text().replace('cuda = "cpu"', 'cuda = "cu130"', 1))
    assert run("lock", "--check").code == LockError.exit_code
    assert run("lock").code == 64


def test_a_stale_lock_is_refused_with_keys_values_and_places(run: Run, tmp_path: Path) -> None:
    """The lock is of the extended image, so that each change of the entry is one of its values."""
    (tmp_path / "matrices" / "mine.yaml").write_text(
        "images:\n  mine:\n    extends: cpu-grpo\n    without: [tensorboard]\n"
        "    env:\n      MINE: {value: /data, because: Tests.}\n"
        "    components:\n      math-verify: {version: ==0.9.0}\n"
    )
    text = (shipped("locks") / f"{CELL}.toml").read_text()
    (tmp_path / "locks").mkdir()
    text = text.replace(f'cell = "{CELL}"', 'cell = "mine-cpu-py311"').replace('image = "cpu-grpo"', 'image = "mine"')
    (tmp_path / "locks" / "mine-cpu-py311.toml").write_text(text)
    ended = run("lock", "--check")
    assert ended.code == LockError.exit_code
    assert "error[lock-stale]" in ended.err
    lines = {line.strip().partition(":")[0]: line for line in ended.err.splitlines()}
    assert "none -> /data" in lines["env MINE"]
    assert f"{tmp_path}/matrices/mine.yaml:6:7" in lines["env MINE"]
    assert "none -> math-verify==0.9.0" in lines["components math-verify"]
    assert "mine.yaml:8:7" in lines["components math-verify"]
    assert "-> none" in lines["components tensorboard"]


@pytest.mark.parametrize("words", [("matrix", CELL), ("lock", CELL, "--check"), ("why", "torch==2.9.1")])
def test_an_empty_directory_of_matrices_is_fine(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "matrices" / "odd.yaml").unlink()
    assert run(*words).code == 0
