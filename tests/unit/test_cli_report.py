"""imagegen report from end to end: over the shipped matrix and locks, in a project of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imagegen import lock, pipeline, site
from imagegen.cli.app import App
from imagegen.cli.commands import cli
from imagegen.data import shipped
from imagegen.store import Store
from tests.unit.matrix_samples import shipped_matrix
from tests.unit.report_samples import AUDIT

CELL = "sb3-maskable-cpu-py311"
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(App, "matrix", shipped_matrix())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: str) -> Result:
        project = tmp_path / "project"
        project.mkdir(exist_ok=True)
        return CliRunner().invoke(cli, ["--project", str(project), "report", *arguments])

    return run


def test_a_report_tells_of_what_the_store_knows_and_what_the_project_names(run: Run, tmp_path: Path) -> None:
    made = run("-o", str(tmp_path / "site"), "sb3-maskable")
    assert made.exit_code == 0, made.output
    assert made.stdout == f"{tmp_path}/site/index.html\n"
    page = tmp_path / "site" / site.href(CELL)
    first = page.read_text()
    assert f"imagegen build {CELL}" in first
    assert first.count("Not run here.") == 2
    assert "cpu-grpo-cpu-py311" in first  # it shares layers, and has no page here
    assert not (tmp_path / "site" / site.href("cpu-grpo-cpu-py311")).exists()

    (cell,) = shipped_matrix().select("sb3-maskable")
    store = Store(tmp_path / "cache" / "imagegen" / "store")
    locked = lock.read(shipped("locks") / f"{CELL}.toml")
    found = {"errors": [], "warnings": 0, "report": AUDIT.as_dict()}
    store.remember("audit", pipeline._audit_key(locked, cell), found)
    (tmp_path / "project" / "publish.yaml").write_text("publish: {to: ghcr.io/acme/rl}\n")
    told = json.loads(run("-o", str(tmp_path / "site"), CELL, "--json").stdout)
    assert told == {"index": f"{tmp_path}/site/index.html", "cells": {CELL: str(page)}}
    second = page.read_text()
    assert "docker pull ghcr.io/acme/rl/sb3-maskable:cpu-py311" in second
    assert "no symbol c10::&lt;T&gt;::f" in second
    assert second.count("Not run here.") == 1


def test_a_lock_that_cannot_be_read_hides_no_other_cell(run: Run, tmp_path: Path) -> None:
    (tmp_path / "project" / "locks").mkdir(parents=True)
    (tmp_path / "project" / "locks" / f"{CELL}.toml").write_text("version = <script>\n")
    made = run("-o", str(tmp_path / "site"), "[cs][pb][u3]-*")
    assert made.exit_code == 0, made.output
    assert f"{CELL}.toml" in made.stderr
    assert "its lock cannot be read" in (tmp_path / "site" / "index.html").read_text()
    assert [path.stem for path in (tmp_path / "site" / "cells").iterdir()] == ["cpu-grpo-cpu-py311"]
