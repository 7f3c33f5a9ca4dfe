"""bench/results.py and bench/report.py: tables of the documents are those that programs wrote."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    return importlib.import_module("results")


@pytest.fixture
def report(results: ModuleType) -> ModuleType:
    return importlib.import_module("report")


def test_the_tables_of_measurements_are_those_of_the_files(report: ModuleType) -> None:
    page = report.PAGE.read_text()
    assert report.rendered(page) == page
    places = [match["file"] for match in report._PLACE.finditer(page)]
    assert set(places) == {path.name for path in (report.results.FOLDER).glob("*.json")}


def test_a_saved_table_is_what_is_printed(
    results: ModuleType,
    report: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["bench/x.py", "--save", "x", str(tmp_path / "site-packages")])
    parser = argparse.ArgumentParser()
    results.add_option(parser)
    chosen = parser.parse_args(["--save", "x"])
    table = results.Table({"way": 0, "seconds": 2, "GB": 1}, [["a", 1.234, 1234.56], ["b", 0.0, None]])
    results.publish(chosen.save, {"ways": table})
    rows = "| way | seconds | GB |\n|---|---|---|\n| a | 1.23 | 1,234.6 |\n| b | 0.00 | - |"
    assert capsys.readouterr().out == f"ways\n\n{rows}\n\n"
    page = report.rendered("<!-- bench/results/x.json: ways -->\nold\n<!-- end -->\nrest")
    assert rows in page
    assert "    python bench/x.py --save x site-packages\n" in page  # no directory of this machine
    assert "old" not in page
    assert report.rendered(page) == page


def test_without_a_name_nothing_is_saved(results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    results.publish(None, {"ways": results.Table({"way": 0}, [["a"]])})
    assert not (tmp_path / "results").exists()


def test_a_table_that_no_file_has_is_an_error(
    report: ModuleType, results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError):
        report.rendered("<!-- bench/results/x.json: ways -->\nold\n<!-- end -->")
