"""`imagegen lock GLOB --check`: all locks are checked, and the cells without one are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagegen.core.data import shipped
from tests.support.command_line import Run

CPU = "cpu-grpo-cpu-py311"
MASKABLE = "sb3-maskable-cpu-py311"


def spoil(project: Path, *names: str) -> None:
    (project / "locks").mkdir()
    for name in names:
        text = (shipped("locks") / f"{name}.toml").read_text()
        (project / "locks" / f"{name}.toml").write_text(text.replace('image = "', 'image = "x', 1))


def test_locks_are_checked_and_cells_without_one_are_named(run: Run) -> None:
    ended = run("lock", "*-cpu-py311", "--check", "--json")
    assert ended.code == 0
    checked = [each["cell"] for each in json.loads(ended.out)]
    assert checked == sorted({CPU, MASKABLE} & set(checked))
    assert len(checked) == 2
    (line,) = [line for line in ended.err.splitlines() if line.startswith("without a lock: ")]
    assert "odd-cpu-py311" in line
    assert CPU not in line


def test_no_lock_at_all_is_an_error(run: Run) -> None:
    assert run("lock", "odd", "--check").code == 67


@pytest.mark.parametrize("names", [[CPU], [CPU, MASKABLE]])
def test_a_faulty_lock_hides_no_other(run: Run, tmp_path: Path, names: list[str]) -> None:
    spoil(tmp_path, *names)
    ended = run("lock", "*-cpu-py311", "--check")
    assert ended.code == 67
    assert all(name in ended.err for name in (CPU, MASKABLE))
    assert ended.err.count(": fresh") == 2 - len(names)
