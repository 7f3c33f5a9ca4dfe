"""bench/results.py and bench/report.py: generated pages equal the recorded data."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable
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


@pytest.mark.parametrize(
    "path", ["docs/internals/measurements.md", "bench/results/README.md", "bench/journal/README.md"]
)
def test_a_generated_page_equals_its_data(report: ModuleType, path: str, golden: Callable[[str, str], None]) -> None:
    golden(f"../../{path}", report.pages()[path])


def test_the_page_of_claims_is_short(report: ModuleType) -> None:
    assert len(report.claims_page(report.read_claims()).split()) <= 3000


def test_each_claim_has_its_figures_in_the_journal(report: ModuleType) -> None:
    def figures(text: str) -> set[str]:
        return set(re.findall(r"\d[\d.,e-]*\d|\d", text))

    document = report.read_claims()
    runs = [run for topic in document["topics"] for run in topic["runs"]]
    assert {run["machine"] for run in runs} - {None} == set(document["machines"])
    for run in runs:
        journal = (report.JOURNAL / f"{run['journal']}.md").read_text()
        for claim, value in run["claims"].items():
            assert figures(value) <= figures(journal), (run["journal"], claim)


def test_links_of_the_journal_lead_to_files(report: ModuleType) -> None:
    for path in report.JOURNAL.glob("*.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
        assert [link for link in links if not (path.parent / link).exists()] == [], path.name


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
    page = report.results_page()
    assert rows in page
    assert "    python bench/x.py --save x site-packages\n" in page  # no directory of this machine


def test_without_a_name_nothing_is_saved(results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    results.publish(None, {"ways": results.Table({"way": 0}, [["a"]])})
    assert not (tmp_path / "results").exists()
