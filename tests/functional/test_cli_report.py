"""imagegen report from end to end: over the shipped matrix and locks, in a project of its own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imagegen import lock
from imagegen.app import audit, site_view
from imagegen.app.matrices import Matrices
from imagegen.app.nightly import changes
from imagegen.cli.commands import cli
from imagegen.core.data import shipped
from imagegen.core.errors import FetchError
from imagegen.core.git import log as history
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.lock.model import Lock
from imagegen.run.smoke.passed import PassedSmokeReport, SmokeRequirement, save_passed_report
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix
from tests.support.report_samples import AUDIT, SMOKE

CELL = "sb3-maskable-cpu-py311"
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(Matrices, "matrix", shipped_matrix())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: str) -> Result:
        project = tmp_path / "project"
        project.mkdir(exist_ok=True)
        return CliRunner().invoke(cli, ["--project", str(project), "report", *arguments])

    return run


def test_a_report_shows_what_the_store_has_and_what_the_project_names(run: Run, tmp_path: Path) -> None:
    made = run("-o", str(tmp_path / "site"), "sb3-maskable")
    assert made.exit_code == 0, made.output
    assert made.stdout == f"{tmp_path}/site/index.html\n"
    page = tmp_path / "site" / site_view.href(CELL)
    first = page.read_text()
    assert f"imagegen build {CELL}" in first
    assert first.count("Not run here.") == 2
    index = tmp_path / "site" / "index.html"
    assert 'data-state="locked"' in index.read_text()
    assert "stable-baselines3" in (tmp_path / "site" / "packages.html").read_text()
    assert "cpu-grpo-cpu-py311" in first  # it shares layers, and has no page here
    assert not (tmp_path / "site" / site_view.href("cpu-grpo-cpu-py311")).exists()

    (cell,) = shipped_matrix().select("sb3-maskable")
    store = Store(tmp_path / "cache" / "imagegen" / "store")
    locked = lock.read(shipped("locks") / f"{CELL}.toml")
    found = {"errors": [], "warnings": 0, "report": AUDIT.as_dict()}
    Cache("audit", dict).put(store, audit.audit_key(locked, cell), found)
    assert locked.record
    required = SmokeRequirement.of(locked.record.digest, locked, cell.declarations, require_gpu=False)
    save_passed_report(store, PassedSmokeReport(required.image, required.programs, gpu=False, report=SMOKE.as_dict()))
    (tmp_path / "project" / "publish.yaml").write_text("publish: {to: ghcr.io/acme/rl}\n")
    result = json.loads(run("-o", str(tmp_path / "site"), CELL, "--json").stdout)
    assert result == {"index": f"{tmp_path}/site/index.html", "cells": {CELL: str(page)}}
    second = page.read_text()
    assert 'data-state="tested"' in index.read_text()
    assert '<span class="state tested">tested</span> 1 of 3 smoke checks were skipped.' in second
    assert "They passed: 2 pass, 1 skip." in second
    assert "docker pull ghcr.io/acme/rl/sb3-maskable:latest<" in second
    assert re.search(r"docker pull ghcr\.io/acme/rl/sb3-maskable:2026\.11\.20-torch\S+-[0-9a-f]{8}<", second)
    assert "no symbol c10::&lt;T&gt;::f" in second


def test_a_lock_that_cannot_be_read_hides_no_other_cell(run: Run, tmp_path: Path) -> None:
    (tmp_path / "project" / "locks").mkdir(parents=True)
    (tmp_path / "project" / "locks" / f"{CELL}.toml").write_text("version = <script>\n")
    made = run("-o", str(tmp_path / "site"), "[cs][pb][u3]-*[!4]")
    assert made.exit_code == 0, made.output
    assert f"{CELL}.toml" in made.stderr
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'data-state="no known conflict"' in index
    assert "its lock cannot be read" in index
    cells, sound = tmp_path / "site" / "cells", "cpu-grpo-cpu-py311"
    assert {path.stem for path in cells.glob("*.html")} == {sound, "cpu-grpo-cpu-py313", CELL}
    assert f"imagegen lock {CELL}" in (tmp_path / "site" / site_view.href(CELL)).read_text()
    assert (cells / f"{sound}.toml").read_bytes() == (shipped("locks") / f"{sound}.toml").read_bytes()
    recorded = lock.read(shipped("locks") / f"{sound}.toml").record
    assert recorded
    assert recorded.digest in (cells / f"{sound}.cdx.json").read_text()
    assert "FROM base" in (cells / f"{sound}.Dockerfile").read_text()
    page = (cells / f"{sound}.html").read_text()
    assert all(f'<a href="{sound}.{kind}" download>' in page for kind in ("toml", "cdx.json", "Dockerfile"))


def committed(project: Path, *locks: Lock) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    for each in locks:
        lock.write(each, project / "locks" / f"{CELL}.toml")
        for arguments in (["add", "."], [*identity, "commit", "-qm", "x"]):
            subprocess.run(["git", *arguments], cwd=project, check=True)


def test_locks_are_judged_by_the_rules_of_today(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    project, folder = tmp_path / "project", tmp_path / "site"
    (project / "locks").mkdir(parents=True)
    now = lock.read(shipped("locks") / f"{CELL}.toml")
    torch = next(each for each in now.wheels if each.name == "torch")
    file = replace(torch.file, filename=torch.file.filename.replace("2.13.0", "2.2.0"), path=None, sha256="0" * 64)
    older = replace(torch, version="2.2.0+cpu", file=file)
    refused = replace(now, record=None, wheels=tuple(older if each is torch else each for each in now.wheels))
    committed(project, refused, now)
    assert run("-o", str(folder), CELL).exit_code == 0
    (difference,) = (folder / "differences").glob(f"{CELL}-*.html")
    for page in (folder / site_view.href(CELL), difference):
        text = page.read_text()
        assert text.count('<span class="state conflict">') == 1
        assert "<code>torch-numpy2</code>" in text
    assert f'href="differences/{difference.name}"' in (folder / "differences.html").read_text()
    assert f'href="../differences/{difference.name}"' in (folder / site_view.href(CELL)).read_text()

    def fail(*_: object) -> None:
        raise FetchError("git is not there", code="fetch-git-failed")

    monkeypatch.setattr(history, "commits", fail)
    made = run("-o", str(folder), CELL)
    assert made.exit_code == 0
    golden.check(made.stderr)
    assert not (folder / "differences").exists()
    for name in (site_view.href(CELL), "differences.html"):
        assert "git cannot read the repository of the lock" in (folder / name).read_text()


def test_history_has_the_sentences_of_a_difference(run: Run, tmp_path: Path, golden: Golden) -> None:
    project = tmp_path / "project"
    (project / "locks").mkdir(parents=True)
    now = lock.read(shipped("locks") / f"{CELL}.toml")
    numpy = next(each for each in now.wheels if each.name == "numpy")
    file = replace(numpy.file, filename=numpy.file.filename.replace(numpy.version, "2.4.5"), path=None, sha256="0" * 64)
    older = replace(numpy, version="2.4.5", file=file)
    before = replace(now, record=None, wheels=tuple(older if each is numpy else each for each in now.wheels))
    committed(project, before, now)
    assert run("-o", str(tmp_path / "site"), CELL).exit_code == 0
    page = (tmp_path / "site" / site_view.href(CELL)).read_text()
    assert f"<li>numpy 2.4.5 -&gt; {numpy.version}</li>" in page
    assert page.index("-&gt;") < page.index("locked for the first time")

    name = lock.inputs_hash(now).removeprefix("sha256:")[:8]
    section = changes.ChangelogSection(
        "2026-11-20", CELL, "00000000", name, ("numpy 2.4.5 -> 2.4.6", "torch stays: \\<why>")
    )
    (project / "locks" / changes.FILE).write_text(changes.dumps([section]))
    assert run("-o", str(tmp_path / "site"), CELL).exit_code == 0
    assert "<li>torch stays: &lt;why&gt;</li>" in (tmp_path / "site" / site_view.href(CELL)).read_text()
    (project / "locks" / changes.FILE).write_text("mine\n")
    made = run("-o", str(tmp_path / "site"), CELL)
    assert made.exit_code == 0
    golden.check(made.stderr)
