"""Consecutive days of PyPI, for the cell that people try first: the command, as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagegen.core.data import shipped
from tests.support.machines import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CELL = "cpu-grpo-cpu-py311"


def imagegen(project: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", "from imagegen.cli import main; main()", "--project", str(project), *arguments]
    return subprocess.run(line, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_days_of_the_index_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / f"{CELL}.toml").write_bytes((shipped("locks") / f"{CELL}.toml").read_bytes())
    imagegen(tmp_path, "lock", CELL, "--upgrade", "--as-of", "2026-11-08T00:00:00Z")
    moved: dict[str, list[str]] = {}
    for day in range(9, 13):
        time = f"2026-11-{day:02}T00:00:00Z"
        first, again = (
            json.loads(imagegen(tmp_path, "nightly", CELL, "--propose-only", "--as-of", time, "--json"))[0]
            for _ in range(2)
        )
        moved[time[:10]] = first["proposal"]["moved"]
        assert (again["result"], again["proposal"]["moved"]) == ("unchanged", [])
        assert again["proposal"]["held"] == first["proposal"]["held"]
        assert any(each["name"] == "transformers" and "<5.11" in each["reason"] for each in first["proposal"]["held"])
    assert any(moved.values())
    text = (tmp_path / "locks" / "CHANGES.md").read_text()
    assert [day for day, lines in moved.items() if f"## {day} {CELL}" in text] == [day for day in moved if moved[day]]
