"""The files of wheel scans: the same scans give the same bytes, whatever else a file holds is an error, and those that
are shipped say what the audit says of them today.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from imagegen.compat import scans_reader
from imagegen.compat import wheel_scans as scans
from imagegen.compat.wheel_scans import CAPABILITIES, PackageScans, ScannedLibrary, WheelScan, WheelVerdict
from imagegen.core.data import shipped
from imagegen.core.errors import MatrixError
from tests.support.errors import raises
from tools.harvest import scans_file
from tools.harvest.scans import judge

NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)
SETS = st.lists(NAMES, max_size=4, unique=True).map(sorted).map(tuple)
TARGETS = st.lists(st.sampled_from(["sm_80", "sm_90a", "compute_90@8.7", "sm_120f"]), min_size=1, unique=True)
CODE = st.dictionaries(TARGETS.map(sorted).map(tuple), st.integers(1, 999), max_size=3)
NODES = st.sampled_from(["", "2.14", "2.28", "2.34"])
LIBRARIES = st.builds(
    ScannedLibrary,
    path=st.from_regex(r"[a-z]{1,6}/[a-z_]{1,8}\.so", fullmatch=True),
    loaded=st.booleans(),
    needed=SETS,
    symbols=SETS,
    code=CODE.map(lambda found: tuple(sorted(found.items()))),
    glibc=NODES,
    libstdcxx=st.sampled_from(["", "3.4.21"]),
)


def by_capability(values: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    found = st.dictionaries(st.sampled_from(CAPABILITIES), values, max_size=4)
    return found.map(lambda each: {capability: each[capability] for capability in sorted(each, key=Version)})


VERDICTS = st.builds(
    WheelVerdict,
    glibc=NODES,
    cuda=st.lists(st.integers(11, 13), unique=True).map(sorted).map(tuple),
    torch=st.lists(st.sampled_from(["2.8", "2.9", "2.10"]), unique=True).map(
        lambda each: tuple(sorted(each, key=Version))
    ),
    later=st.booleans(),
    strings=st.sampled_from(["", "old", "new"]),
    lacks=by_capability(NAMES),
    compiles=by_capability(st.sampled_from(["8.7", "9.0"])),
)
SCANS = st.builds(
    WheelScan,
    version=st.sampled_from(["0.9", "0.10", "1.0.post1", "2.0"]),
    filename=NAMES,
    sha256=st.sampled_from(["0" * 64, "f" * 64]),
    size=st.integers(0, 1 << 40),
    read=st.dates().map(str),
    libraries=st.lists(LIBRARIES, max_size=3, unique_by=lambda each: each.path).map(
        lambda found: tuple(sorted(found, key=lambda each: each.path))
    ),
    verdict=VERDICTS,
)
PACKAGES = st.lists(SCANS, max_size=4, unique_by=lambda each: each.version).map(
    lambda found: PackageScans("pack", "pypi", "2024-07-01").with_scans(found)
)


@given(PACKAGES)
def test_a_file_gives_back_what_was_written(package: PackageScans) -> None:
    assert scans_reader.parse(scans_file.dumps(package), name="pack") == package


@given(PACKAGES, st.randoms())
def test_the_order_in_which_scans_came_does_not_matter(package: PackageScans, random: Any) -> None:
    releases = list(package.releases.values())
    random.shuffle(releases)
    other = replace(package, releases={each.version: each for each in releases})
    assert scans_file.dumps(other) == scans_file.dumps(package)


@given(PACKAGES, SCANS)
def test_a_newer_release_only_adds_lines(package: PackageScans, scan: WheelScan) -> None:
    before = entries(package)
    after = entries(package.with_scans([replace(scan, version="3.0")]))
    assert before == [line for line in after if line in before]


def entries(package: PackageScans) -> list[str]:
    """Return the lines of all tables, in their order."""
    lines = scans_file.dumps(package).decode().splitlines()
    return [line.rstrip(",") for line in lines if line.startswith("    ")]


SMALL = {
    "package": "pack", "index": "pypi", "since": "2024-07-01",
    "names": ["libcudart.so.13", "sm_80"], "containers": ["1"],
    "libraries": [{"path": "pack/_C.abi3.so", "loaded": True, "needed": "0", "code": "0:3"}],
    "releases": {"1.0": {"wheel": "w.whl", "sha256": "0" * 64, "size": 1, "read": "2026-11-24", "libraries": "0"}},
}  # fmt: skip


def spoiled(**changes: object) -> bytes:
    return json.dumps({**SMALL, **changes}).encode()


def release(**changes: object) -> dict[str, object]:
    table: dict[str, object] = {**SMALL["releases"]["1.0"], **changes}  # type: ignore[index]
    return {"1.0": table}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"\xff", b'{"package": "pack", "package": "pack"}', b"[" * 100_000,
        spoiled(package="Pack"), spoiled(since="2024"), spoiled(extra=1), spoiled(names=["a"]),
        spoiled(containers=["2"]), spoiled(containers=["0-"]), spoiled(libraries=[{"path": ""}]),
        spoiled(libraries=[{"path": "a", "code": "0"}]), spoiled(libraries=[{"path": "a", "code": "9:1"}]),
        spoiled(libraries=[{"path": "a", "needed": "0-999999"}]), spoiled(libraries=[]),
        spoiled(releases=release(sha256="0")), spoiled(releases=release(size=-1)),
        spoiled(releases=release(cuda=["13"])),
        spoiled(releases=release(torch=["2"])), spoiled(releases=release(lacks={"a": ["9"]})),
        spoiled(releases=release(lacks={"a": ["9.0"], "b": ["9.0"]})), spoiled(releases=release(libraries="0,7")),
    ],
)  # fmt: skip
def test_what_is_no_file_of_scans_is_an_error_that_names_the_command(raw: bytes) -> None:
    with pytest.raises(MatrixError) as caught:
        scans_reader.parse(raw, Path("matrices/scans/pack.json"))
    assert caught.value.code == "matrix-scans-malformed"
    assert "python -m tools.harvest --scan pack" in str(caught.value.fix)


def test_a_file_about_another_package_is_an_error() -> None:
    assert scans_reader.parse(spoiled(), name="pack").releases["1.0"].libraries[0].code == ((("sm_80",), 3),)
    with raises("matrix-scans-malformed"):
        scans_reader.parse(spoiled(), name="other")


def test_the_last_directory_with_a_file_counts(tmp_path: Path) -> None:
    first, last = tmp_path / "a", tmp_path / "b"
    package = PackageScans("pack", "pypi", "2024-07-01")
    scans_file.write(package, scans.path_of(first, "pack"))
    scans_file.write(replace(package, since="2025-01-01"), scans.path_of(last, "pack"))
    found = scans.load([first, last], "pack")
    assert found
    assert found.since == "2025-01-01"
    assert scans.load([first, last], "other") is None
    assert scans.names([first, last]) == ["pack"]


# The shipped files.

MATRICES = shipped("matrices")
SHIPPED = scans.names([MATRICES])


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_as_it_is_written_and_says_what_the_audit_says_today(name: str) -> None:
    # `tools.harvest --scan` writes new verdicts after a change of the audit, or of its index of torch's exports.
    path = scans.path_of(MATRICES, name)
    package = scans_reader.parse(path.read_bytes(), path, name)
    assert scans_file.dumps(package) == path.read_bytes()
    for each in package.releases.values():
        assert each.verdict == judge(name, each.libraries), each.version


def test_the_shipped_files_stay_small() -> None:
    assert SHIPPED
    assert sum(scans.path_of(MATRICES, name).stat().st_size for name in SHIPPED) < 1_000_000
