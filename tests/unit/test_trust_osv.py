"""Advisories are read from files and directories and archives; what is none is named, and ranges mean what OSV says."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.core.errors import UsageError
from imagegen.supply.trust import osv
from imagegen.supply.trust.osv import Affected, Event, fixed_in, is_affected, read, told
from tests.support.errors import raises


def record(id_: str, *ranges: list[dict[str, str]], versions: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    affected = {
        "package": {"ecosystem": more.pop("ecosystem", "PyPI"), "name": more.pop("name", "demo")},
        "ranges": [{"type": "ECOSYSTEM", "events": events} for events in ranges],
        "versions": list(versions),
    }
    return {"id": id_, "modified": "2026-11-20T00:00:00Z", "affected": [affected], **more}


def everything(_: str, __: str) -> bool:
    return True


def affected(*events: Event, versions: tuple[str, ...] = ()) -> Affected:
    return Affected("PyPI", "demo", frozenset(versions), (events,) if events else (), ())


RANGES: dict[str, tuple[tuple[Event, ...], str, str]] = {
    "from the beginning": ((("introduced", "0"), ("fixed", "2.0")), "0.1 1.9", "2.0 2.1"),
    "of one line": ((("introduced", "1.0"), ("fixed", "1.5")), "1.0 1.4.9", "0.9 1.5 2.0"),
    "in no order": ((("fixed", "1.5"), ("introduced", "1.0")), "1.0 1.4.9", "0.9 1.5"),
    "two lines in one": (
        (("introduced", "1.0"), ("fixed", "1.5"), ("introduced", "2.0"), ("fixed", "2.5")),
        "1.2 2.2",
        "0.9 1.7 2.5",
    ),
    "up to one that is in": ((("introduced", "0"), ("last_affected", "2.0")), "1.0 2.0", "2.0.1"),
    "one alone": ((("introduced", "2.0"), ("last_affected", "2.0")), "2.0", "1.9 2.1"),
    "never fixed": ((("introduced", "1.0"),), "1.0 99", "0.9"),
    "within a limit": ((("introduced", "0"), ("limit", "3.0")), "2.9", "3.0 4.0"),
    "a star is no limit": ((("introduced", "0"), ("limit", "*")), "2.9", ""),
    "a bound that nobody can read counts": ((("introduced", "0"), ("fixed", "soon")), "99", ""),
}


@pytest.mark.parametrize(("events", "inside", "outside"), RANGES.values(), ids=list(RANGES))
def test_ranges(events: tuple[Event, ...], inside: str, outside: str) -> None:
    assert all(is_affected(affected(*events), each, Version) for each in inside.split())
    assert not any(is_affected(affected(*events), each, Version) for each in outside.split())


def test_versions_are_named_in_any_spelling() -> None:
    assert is_affected(affected(versions=("1.0.0", "odd one")), "1.0", Version)
    assert not is_affected(affected(versions=("1.0.1", "odd one")), "1.0", Version)


def test_what_fixes_it_comes_after() -> None:
    several = affected(("introduced", "0"), ("fixed", "1.5"), ("introduced", "2.0"), ("fixed", "2.5"), ("fixed", "3.0"))
    assert [fixed_in(several, each, Version) for each in ("1.0", "2.1", "9")] == ["1.5", "2.5", None]
    assert fixed_in(affected(("introduced", "0")), "1.0", Version) is None


bounds = st.integers(0, 20)


@given(st.lists(st.tuples(bounds, bounds).map(sorted), max_size=4), bounds)
def test_ranges_are_what_their_pairs_say(pairs: list[list[int]], version: int) -> None:
    """Introduced and fixed, pair by pair, each a range of its own."""
    found = Affected(
        "PyPI", "demo", frozenset(),
        tuple((("introduced", str(low)), ("fixed", str(high))) for low, high in pairs), (),
    )  # fmt: skip
    assert is_affected(found, str(version), int) == any(low <= version < high for low, high in pairs)


def test_files_directories_and_archives_say_the_same(tmp_path: Path) -> None:
    records = [record("PYSEC-1", [{"introduced": "0"}]), record("PYSEC-2", versions=("1.0",))]
    (tmp_path / "list.json").write_text(json.dumps(records))
    (tmp_path / "all").mkdir()
    for each in records:
        (tmp_path / "all" / f"{each['id']}.json").write_text(json.dumps(each))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for each in records:
            archive.writestr(f"{each['id']}.json", json.dumps(each))
    (tmp_path / "nested").mkdir()
    (tmp_path / "all.zip").rename(tmp_path / "nested" / "all.zip")
    first = read([tmp_path / "list.json"], everything)
    assert [each.id for each in first.advisories] == ["PYSEC-1", "PYSEC-2"]
    assert first == read([tmp_path / "all"], everything) == read([tmp_path / "nested"], everything)


def test_what_is_withdrawn_or_about_others_is_left_out(tmp_path: Path) -> None:
    records = [
        record("A", [{"introduced": "0"}], withdrawn="2026-01-01T00:00:00Z"),
        record("B", [{"introduced": "0"}], name="other"),
        record(
            "C",
            [{"introduced": "0"}],
            modified="2026-11-21T00:00:00Z",
            aliases=["CVE-1"],
            upstream=["CVE-2", "DEBIAN-CVE-2"],
        ),
        record(
            "D",
            [{"introduced": "0"}],
            upstream=["CVE-3", "CVE-4"],
            severity=[{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N"}],
        ),
    ]
    (tmp_path / "all.json").write_text(json.dumps(records))
    found = read([tmp_path / "all.json"], lambda _, name: name == "demo")
    assert [(each.id, each.names) for each in found.advisories] == [("C", {"C", "CVE-1", "CVE-2"}), ("D", {"D"})]
    assert found.advisories[1].severity == ("CVSS:3.1/AV:N",)
    assert [each.upstream for each in found.advisories] == [frozenset(), {"CVE-3", "CVE-4"}]
    assert (found.records, found.newest, found.ecosystems) == (4, "2026-11-21T00:00:00Z", {"PyPI"})
    assert told(found, "2026-11-23") == "4 records, the newest of 2026-11-21 (2 days old)"
    assert told(found, "2026-11-21") == "4 records, the newest of 2026-11-21 (of today)"


NO_OSV = {
    "no JSON": b"<html>",
    "another format": b'{"bomFormat": "CycloneDX"}',
    "no object": b"[1]",
    "affected is a text": b'{"id": "A", "modified": "2026-01-01T00:00:00Z", "affected": "all"}',
    "a package without a name": b'{"id": "A", "modified": "x", "affected": [{"package": {"ecosystem": "PyPI"}}]}',
    "events are numbers": json.dumps(record("A", [1])).encode(),  # type: ignore[list-item]
    "aliases are numbers": b'{"id": "A", "modified": "x", "aliases": [1]}',
    "deep": b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("content", NO_OSV.values(), ids=list(NO_OSV))
def test_what_is_no_osv_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(UsageError) as refused:
        read([tmp_path / "bad.json"], everything)
    assert refused.value.what == "this is no OSV advisory"
    assert refused.value.where == str(tmp_path / "bad.json")
    assert refused.value.fix
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("bad.json", content)
    with raises("usage-advisories-invalid"):
        read([tmp_path / "all.zip"], everything)


def test_damaged_archives_and_empty_directories_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", json.dumps(record("A")) * 50)
    data = bytearray((tmp_path / "all.zip").read_bytes())
    data[40:60] = bytes(20)
    (tmp_path / "all.zip").write_bytes(data)
    with raises("usage-advisories-invalid"):
        read([tmp_path / "all.zip"], everything)
    (tmp_path / "none").mkdir()
    with raises("usage-advisories-invalid"):
        read([tmp_path / "none"], everything)
    with raises("usage-advisories-invalid"):
        read([tmp_path / "gone"], everything)
    (tmp_path / "long.json").write_text(json.dumps(record("A")))
    monkeypatch.setattr(osv, "_LONGEST", 10)
    with raises("usage-advisories-invalid"):
        read([tmp_path / "long.json"], everything)


FIELDS = ["affected", "package", "ecosystem", "name", "ranges", "events", "type", "introduced", "fixed", "severity"]
FIELDS += ["score", "versions", "aliases", "database_specific", "ecosystem_specific", "urgency"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=25,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["affected", "severity", "aliases", "database_specific", "summary"]), anything))
def test_any_record_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({**fields, "id": "A", "modified": "2026-11-20T00:00:00Z"}))
    try:
        found = read([path], everything)
    except UsageError:
        return
    for each in (hit for advisory in found.advisories for hit in advisory.affected):
        is_affected(each, "1.0", Version)
        fixed_in(each, "1.0", Version)
