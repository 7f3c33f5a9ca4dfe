"""imagegen cve, over a shipped lock and advisories of a test's own."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from imagegen.cli.app import App
from tests.unit.test_cli import Run, run  # noqa: F401 - a fixture
from tests.unit.test_trust_osv import record

CELL = "sb3-maskable"


def advise(tmp_path: Path, *records: dict[str, Any]) -> list[str]:
    file = tmp_path / "advisories.json"
    file.write_text(json.dumps(records))
    return ["cve", CELL, "--advisories", str(file)]


@pytest.fixture
def affected() -> dict[str, Any]:
    about = record(
        "GHSA-1", [{"introduced": "0"}, {"fixed": "999"}], name="torch", aliases=["CVE-7"], summary="It leaks."
    )
    return {**about, "severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N"}]}


def test_what_is_found_is_told(run: Run, tmp_path: Path, affected: dict[str, Any]) -> None:  # noqa: F811
    ended = run(*advise(tmp_path, affected))
    assert ended.code == 1
    head, *rest = ended.out.splitlines()
    assert head.startswith("CVE-7 (GHSA-1): torch 2.")
    assert rest[:2] == ["  It leaks.", "  severity: CVSS:3.1/AV:N"]
    assert rest[2].startswith("  fixed in 999; asked for by ")
    assert rest[-1].startswith("sb3-maskable-cpu-py311: known vulnerabilities: 1 of 1 among ")
    assert "advisories: 1 record, the newest of 2026-11-20" in ended.err
    assert "NOTE: none of them is about Debian" in ended.err


def test_nothing_is_an_answer_too(run: Run, tmp_path: Path) -> None:  # noqa: F811
    ended = run(*advise(tmp_path, record("GHSA-1", [{"introduced": "0"}], name="other")))
    assert ended.code == 0
    assert "no known vulnerability in 101 packages" in ended.out


def test_exceptions_expire(run: Run, tmp_path: Path, affected: dict[str, Any]) -> None:  # noqa: F811
    today = datetime.now(UTC).date()
    for until, code, word in (
        (today + timedelta(1), 0, "accepted until"),
        (today - timedelta(1), 1, "which is over"),
    ):
        text = f'publish: {{exemptions: [{{advisory: CVE-7, because: Unused., until: "{until}"}}]}}\n'
        (tmp_path / "publish.yaml").write_text(text)
        ended = run(*advise(tmp_path, affected))
        assert ended.code == code
        assert word in ended.out
        found = json.loads(run(*advise(tmp_path, affected), "--json").out)
        (one,) = found["cells"]["sb3-maskable-cpu-py311"]
        assert (one["names"], one["accepted"]) == (["CVE-7", "GHSA-1"], code == 0)
        assert one["exemption"] == {"because": "Unused.", "until": until.isoformat()}


def test_what_is_no_advisory_is_refused(run: Run, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "page.html").write_text("<html>")
    ended = run("cve", CELL, "--advisories", str(tmp_path / "page.html"))
    assert ended.code == 64
    assert "page.html: this is no OSV advisory" in ended.err


def test_a_cell_without_a_lock_says_what_to_run(
    run: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(App, "find_lock", lambda *_: None)
    ended = run(*advise(tmp_path, record("A")))
    assert ended.code == 67
    assert "`imagegen lock sb3-maskable-cpu-py311`" in ended.err
