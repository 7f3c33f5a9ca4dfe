"""An audit's report: its order, and its three forms, table, JSON and SARIF. The catalogue is a made-up one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit import finding_texts
from imagegen.audit.model import Finding, Severity
from imagegen.audit.report import by_package, joined_reports, ordered
from imagegen.audit.sarif import LockLocation, document
from imagegen.cli.audit_text import table
from imagegen.core.text import unprintable
from tests.support.audit_reports import ENTRIES, FINDINGS, REPORT
from tests.support.golden import Golden

LOCK = LockLocation("locks/hopper-vllm-cu130-py311.toml", {"vllm 0.11.0": 722, "torch 2.8.0": 690})


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding_texts, "catalogue", lambda: ENTRIES)


def test_the_reports_of_environments_are_one() -> None:
    own, clean = REPORT.as_dict(), replace(REPORT, findings=(), gpus={"sm_90": False}).as_dict()
    found = joined_reports("several", {"one": own, "two": clean})
    assert found.keys() == own.keys()
    assert (found["subject"], found["passed"], found["counts"]) == ("several", False, own["counts"])
    assert (found["packages"], found["gpus"]["sm_90"]) == (2 * REPORT.packages, False)
    assert found["findings"] == [each | {"environment": "one"} for each in own["findings"]]
    assert joined_reports("several", {"one": clean, "two": clean})["passed"]


def test_findings_have_one_order_and_come_once() -> None:
    assert len(REPORT.findings) == len(set(FINDINGS)) < len(FINDINGS)
    assert all(ordered(shuffled) == REPORT.findings for shuffled in permutations(set(FINDINGS)))
    severities = [finding.severity for finding in REPORT.findings]
    assert severities == sorted(severities, key=[*Severity].index)
    assert list(by_package(FINDINGS)) == ["", "vllm 0.11.0", "alpha 1.0", "torch 2.8.0"]


def test_only_errors_count_against_it() -> None:
    assert not REPORT.passed
    assert REPORT.counts == {"error": 2, "warning": 2, "info": 2}
    mild = tuple(finding for finding in REPORT.findings if finding.severity is not Severity.ERROR)
    assert replace(REPORT, findings=mild).passed


def lines(width: int, *, everything: bool = False) -> list[str]:
    return [line.plain for line in table(REPORT, width, everything=everything, each_package=everything)]


def test_the_table_is_as_it_was(golden: Golden) -> None:
    golden("audit.txt", "\n".join(lines(100)) + "\n")
    golden("audit-all.txt", "\n".join(lines(100, everything=True)) + "\n")


def test_the_table_fits_its_terminal_and_a_pipe_gets_whole_lines(golden: Golden) -> None:
    assert max(map(len, lines(60))) <= 60
    assert max(map(len, lines(300))) <= 100
    whole = lines(10_000)
    assert f"    {FINDINGS[1].evidence}" in whole
    golden.check(whole[-1])


def test_notes_are_counted_and_shown_when_they_are_asked_for(golden: Golden) -> None:
    few, everything = "\n".join(lines(100)), "\n".join(lines(100, everything=True))
    assert "312 MB" not in few
    assert "312 MB" in everything
    golden.check(few)
    assert "and 5 more" not in everything
    assert all(symbol.split("(")[0] in everything for symbol in FINDINGS[2].details)


def test_a_long_line_is_cut_unless_all_is_asked_for() -> None:
    long = Finding(Severity.ERROR, "dead", "x 1", None, "e" * 1000, ("d" * 1000,))
    report = replace(REPORT, findings=(long,))
    few, everything = ([line.plain.strip() for line in table(report, 10_000, everything=each, each_package=False)]
                       for each in (False, True))  # fmt: skip
    assert [f"{letter * 297}..." for letter in "ed"] == few[2:4]
    assert [letter * 1000 for letter in "ed"] == everything[2:4]


def test_what_acts_on_a_terminal_is_shown_as_what_it_is() -> None:
    bad = Finding(Severity.ERROR, "dead", "x 1", "a\x1b[2J", "b\x1b]0;c\x07", ("\u202ed",))
    report = replace(REPORT, findings=(bad,), subject="e\x1b")
    for line in table(report, 100, everything=True, each_package=True):
        assert unprintable(line.plain) is None


def test_the_json_is_as_it_was(golden: Golden) -> None:
    golden("audit.json", json.dumps(REPORT.as_dict(), indent=2, sort_keys=True) + "\n")


def test_the_sarif_is_as_it_was(golden: Golden) -> None:
    plain = json.dumps(document([REPORT], {REPORT.subject: LOCK}), indent=2)
    golden("audit.sarif", plain + "\n")


# Written after section 3 of SARIF 2.1.0 and GitHub's page on what it reads: not the official JSON schema.
# Property -> (type, whether it must be there); no others may be.
SHAPES: dict[str, dict[str, tuple[type, bool]]] = {
    "log": {"$schema": (str, True), "version": (str, True), "runs": (list, True)},
    "run": {"tool": (dict, True), "results": (list, True)},
    "driver": {"name": (str, True), "version": (str, True), "rules": (list, True)},
    "rule": {
        "id": (str, True),
        "shortDescription": (dict, True),
        "fullDescription": (dict, True),
        "help": (dict, True),
        "defaultConfiguration": (dict, True),
    },
    "result": {
        "ruleId": (str, True),
        "ruleIndex": (int, True),
        "level": (str, True),
        "message": (dict, True),
        "locations": (list, True),
        "partialFingerprints": (dict, True),
    },
    "location": {"physicalLocation": (dict, True), "logicalLocations": (list, False)},
    "physical": {"artifactLocation": (dict, True), "region": (dict, True)},
    "logical": {"name": (str, True), "fullyQualifiedName": (str, True), "kind": (str, True)},
}


def shaped(kind: str, thing: Any) -> Any:
    shape = SHAPES[kind]
    assert set(thing) <= set(shape), kind
    assert {name for name, (_, needed) in shape.items() if needed} <= set(thing), kind
    assert all(type(value) is shape[name][0] for name, value in thing.items()), kind
    return thing


def check_sarif(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check what the standard and GitHub require, and yield each result."""
    assert shaped("log", found)["version"] == "2.1.0"
    (run,) = found["runs"]
    driver = shaped("driver", shaped("run", run)["tool"]["driver"])
    for rule in driver["rules"]:
        texts = [shaped("rule", rule)[name] for name in ("shortDescription", "fullDescription", "help")]
        assert all(set(text) == {"text"} and text["text"] for text in texts)
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    for result in run["results"]:
        assert driver["rules"][shaped("result", result)["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert 0 < len(result["message"]["text"]) <= 1000
        (location,) = result["locations"]
        physical = shaped("physical", shaped("location", location)["physicalLocation"])
        uri = urlsplit(physical["artifactLocation"]["uri"])
        assert (uri.scheme, uri.netloc, uri.query, uri.fragment) == ("", "", "", "")
        assert uri.path.isascii()
        path = PurePosixPath(unquote(uri.path))
        assert path.parts
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert physical["region"]["startLine"] >= 1
        assert all(shaped("logical", each)["fullyQualifiedName"] for each in location.get("logicalLocations", []))
        yield result
    prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len(set(prints)) == len(prints)


def test_sarif_points_at_the_line_of_the_lock_or_at_the_file() -> None:
    places = {}
    for sources in ({}, {REPORT.subject: LOCK}):
        for result in check_sarif(document([REPORT], sources)):
            physical = result["locations"][0]["physicalLocation"]
            place = (physical["artifactLocation"]["uri"], physical["region"]["startLine"])
            places.setdefault(result["message"]["text"].splitlines()[0], []).append(place)
    assert places["vllm 0.11.0: all of it"] == [("vllm%200.11.0", 1), (LOCK.path, 722)]
    (symbol,) = (found for message, found in places.items() if "vllm/_C" in message)
    assert symbol == [("vllm/_C.abi3.so", 1), (LOCK.path, 722)]
    (base,) = (found for message, found in places.items() if "libodd" in message)
    assert base == [("lib/x86_64-linux-gnu/libodd.so.1", 1), (LOCK.path, 1)]


def test_a_finding_keeps_its_fingerprint_when_a_version_or_a_count_moves() -> None:
    def prints(*findings: Finding) -> list[str]:
        results = check_sarif(document([replace(REPORT, findings=findings)], {}))
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]

    symbol = FINDINGS[2]
    moved = replace(symbol, package="vllm 0.12.0", evidence="9 symbols", details=())
    assert prints(symbol) == prints(moved)
    assert prints(symbol) != prints(replace(symbol, path="vllm/_moe_C.abi3.so"))
    assert len(set(prints(symbol, moved))) == 2


TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LINE = st.text(st.characters(exclude_categories=()), min_size=1, max_size=200)


@given(st.lists(st.tuples(TEXT, TEXT | st.none(), LINE, st.lists(TEXT, max_size=3)), max_size=4), TEXT, st.booleans())
def test_any_text_gives_valid_sarif_json_and_lines(found: list[Any], subject: str, with_lock: bool) -> None:
    findings = ordered(Finding(Severity.ERROR, "dead", name, path, said, (*more,)) for name, path, said, more in found)
    report = replace(REPORT, subject=subject, findings=findings)
    sarif = document([report], {subject: LOCK} if with_lock else {})
    assert len(list(check_sarif(sarif))) == len(findings)
    json.dumps(sarif, ensure_ascii=False).encode()
    json.dumps(report.as_dict())
    for line in table(report, 80, everything=True, each_package=True):
        assert unprintable(line.plain) is None
        assert len(line.plain) <= 80
