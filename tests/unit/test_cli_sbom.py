"""imagegen sbom: the document that publishing attaches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner

from imagegen.app.lock_files import LockFiles
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext
from imagegen.cli import sbom_command
from imagegen.cli.app import App
from imagegen.lock import read
from imagegen.lock.model import Lock
from imagegen.spec.model import Cell
from imagegen.trust import sbom
from imagegen.trust.licences import KnownLicences
from tests.support.environment import environment
from tests.support.errors import raises

LOCK = read(Path(__file__).parents[2] / "locks" / "cpu-grpo-cpu-py311.toml")
CELL = cast("Cell", SimpleNamespace(id=LOCK.cell, image=LOCK.image, indexes=()))


def app_of(root: Path, monkeypatch: pytest.MonkeyPatch, lock: Lock) -> App:
    """A session whose project has this lock; no index is asked for licences."""
    monkeypatch.setattr(Matrices, "matrix", SimpleNamespace(select_one=lambda _, **__: CELL))
    monkeypatch.setattr(LockFiles, "fresh", lambda *_: lock)
    monkeypatch.setattr(ProjectContext, "settings_for", lambda self, _: self.settings)
    monkeypatch.setattr(sbom_command, "read_known_licences", lambda *_: KnownLicences())
    return App(environment(root), root)


def run(app: App, *arguments: str) -> str:
    return CliRunner().invoke(sbom_command.command, (LOCK.image, *arguments), obj=app, catch_exceptions=False).stdout


def test_the_document_is_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(tmp_path, monkeypatch, LOCK)
    assert LOCK.record
    expected = sbom.sbom(LOCK, LOCK.record.digest, KnownLicences()).decode()
    assert run(app) == expected
    assert run(app, "-o", str(tmp_path / "image.cdx.json")) == ""
    assert (tmp_path / "image.cdx.json").read_text() == expected
    assert json.loads(expected)["specVersion"] == "1.6"


def test_without_a_digest_there_is_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("lock-no-record"):
        run(app_of(tmp_path, monkeypatch, replace(LOCK, record=None)))


def test_an_output_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with raises("usage-output-unwritable"):
        run(app_of(tmp_path, monkeypatch, LOCK), "-o", str(tmp_path / "file" / "x.json"))
