"""Two packages, one path: kept once, given to the owner, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.core.errors import LockError
from imagegen.image.layers.ownership import OwnershipErrors, left_out, losers
from imagegen.lock import file as lock_file
from imagegen.lock import freshness
from imagegen.lock.model import FileConflict, Lock, LockedBase, LockedFile, LockedWheel, file_conflicts_among
from imagegen.spec.model import FileConflictRule
from tests.support.golden import Golden
from tests.support.interpreters import LOCKED
from tests.support.matrix_samples import SMALL, complaint, load

SITE = "/opt/venv/lib/python3.11/site-packages"
REFUSED = "refused: names the path and both packages"
RULE = FileConflictRule("cv2-headless", "headless", ("full",), "*/site-packages/cv2/*", "b", "s", "2026-11-21")
OVERRIDES = """\
file_conflicts:
  cv2-headless:
    owner: headless
    over: [full]
    paths: "*/site-packages/cv2/*"
    because: b
    source: s
    date: "2026-11-21"
"""


def lock_of(*names: str, file_conflicts: tuple[FileConflict, ...] = ()) -> Lock:
    base = LockedBase("debian12", "debian", "bookworm", {}, ())
    axes = {"platform": "linux/amd64", "python": "3.11", "cuda": "cpu"}
    uv, *wheels = (
        LockedWheel(name, "1.0", LockedFile(f"{name}-1.0-py3-none-any.whl", 1, "0" * 64, "pypi"), via=())
        for name in ("uv", *sorted(names))
    )
    return Lock(
        cell="demo-cpu-py311",
        image="demo",
        axes=axes,
        inputs={},
        uv=uv,
        as_of="2026-01-01T00:00:00Z",
        base=base,
        interpreter=LOCKED,
        wheels=tuple(wheels),
        env=(),
        record=None,
        file_conflicts=file_conflicts,
    )


@pytest.mark.fault("Wheels", "two packages with one path, the same bytes and mode", "kept once")
def test_the_same_file_twice_is_kept_once() -> None:
    same = {f"{SITE}/shared/__init__.py": "aa -"}
    assert losers(lock_of("one", "two"), {"one": same, "two": same}) == {}


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        pytest.param(
            {"x.py": "aa -"},
            {"x.py": "bb -"},
            "different contents",
            marks=pytest.mark.fault("Wheels", "two packages with one path and other bytes or mode", REFUSED),
        ),
        pytest.param(
            {"x": "aa -"},
            {"x": "aa x"},
            "different contents",
            marks=pytest.mark.fault("Wheels", "two packages with one path and other bytes or mode", REFUSED),
        ),
        pytest.param(
            {"x": "aa -"},
            {"x/y/z": "bb -"},
            "file where the other installs a directory",
            marks=pytest.mark.fault("Wheels", "a package's file where another has a directory", REFUSED),
        ),
        pytest.param(
            {"x.py": "aa -"},
            {"__pycache__/x.cpython-311.pyc": "bb -"},
            "byte-code for the other's source",
            marks=pytest.mark.fault("Wheels", "byte-code for another package's source", REFUSED),
        ),
        *(
            pytest.param(
                {"x.py": "aa -"},
                {f"__pycache__{path}": "bb -"},
                "file where the other installs a directory",
                marks=pytest.mark.fault("Wheels", "a package's file where another has a directory", REFUSED),
            )
            for path in ("", "/x.cpython-311.pyc/y")
        ),
    ],
)
def test_packages_that_do_not_go_together(one: dict[str, str], two: dict[str, str], why: str) -> None:
    contents = {
        name: {f"{SITE}/{path}": what for path, what in files.items()} for name, files in (("one", one), ("two", two))
    }
    for order in (contents, dict(reversed(contents.items()))):
        with pytest.raises(OwnershipErrors, match=why) as caught:
            losers(lock_of("one", "two"), order)
        assert "one" in str(caught.value) and "two" in str(caught.value) and SITE in str(caught.value)


def test_a_thousand_clashes_of_two_packages_are_one_error(golden: Golden) -> None:
    contents = {name: {f"{SITE}/{number}": name for number in range(1000)} for name in ("one", "two")}
    with pytest.raises(OwnershipErrors) as caught:
        losers(lock_of("one", "two"), contents)
    golden.check(caught.value)
    assert len(caught.value.errors) == 1


@pytest.mark.fault(
    "Wheels", "two packages with one path, and a sourced rule", "only the file of the selected package is in the image"
)
def test_a_rule_names_the_owner() -> None:
    contents = {
        "full": {f"{SITE}/cv2/__init__.py": "aa -", f"{SITE}/other.py": "cc -"},
        "headless": {f"{SITE}/cv2/__init__.py": "bb -", f"{SITE}/cv2/more.py": "dd -"},
    }
    lock = lock_of(*contents)
    with pytest.raises(OwnershipErrors):
        losers(lock, contents)
    lock = replace(lock, file_conflicts=file_conflicts_among([RULE], lock.wheels))
    assert losers(lock, contents) == {"full": frozenset({f"{SITE}/cv2/__init__.py"})}
    assert left_out(lock, "full", contents["full"]) == losers(lock, contents)["full"]
    assert left_out(lock, "headless", contents["headless"]) == frozenset()


@pytest.mark.fault(
    "Wheels", "a file-conflict override for files that its package lacks", "refused: they would be nowhere"
)
def test_a_rule_cannot_lose_files(golden: Golden) -> None:
    contents = {"full": {f"{SITE}/cv2/only.py": "aa -"}, "headless": {f"{SITE}/cv2/__init__.py": "bb -"}}
    lock = lock_of(*contents)
    lock = replace(lock, file_conflicts=file_conflicts_among([RULE], lock.wheels))
    with pytest.raises(OwnershipErrors) as caught:
        losers(lock, contents)
    golden.check(caught.value)
    assert "only.py" in str(caught.value) and "cv2-headless" in str(caught.value)
    back = replace(RULE, id="back", owner="full", over=("headless",))
    lock = replace(lock, file_conflicts=file_conflicts_among([RULE, back], lock.wheels))
    with pytest.raises(OwnershipErrors) as caught:
        losers(lock, {name: {f"{SITE}/cv2/x": name} for name in ("full", "headless")})
    golden.check(caught.value)


def test_a_lock_lists_the_record_exceptions(tmp_path: Path) -> None:
    wheel = f"{{file: x-1.0-py3-none-any.whl, sha256: '{'0' * 64}', because: b, source: s, date: '2026-11-21'}}"
    cell = load(tmp_path, SMALL, f"record_exceptions:\n  x: {wheel}\n").cells()[0]
    lock = replace(lock_of("x"), inputs=cell.inputs)
    assert freshness.stale(lock, cell) == ("record-exceptions",)
    lock = replace(lock, wheels=(replace(lock.wheels[0], record_exception="b"),))
    assert freshness.stale(lock, cell) == ()
    assert lock_file.loads(lock_file.dumps(lock)) == lock
    assert 'record-exception = "b"' in lock_file.dumps(lock)


def test_a_lock_holds_the_overrides_that_it_needs(tmp_path: Path) -> None:
    assert file_conflicts_among([RULE], lock_of("headless", "other").wheels) == ()
    cell = load(tmp_path, SMALL, OVERRIDES).cells()[0]
    assert cell.file_conflicts == (RULE,)
    without = replace(lock_of("full"), inputs=cell.inputs)
    assert "file-conflict" not in lock_file.dumps(without)
    assert freshness.stale(without, cell) == ()
    lock = replace(lock_of("full", "headless"), inputs=cell.inputs)
    assert freshness.stale(lock, cell) == ("file-conflicts",)
    lock = replace(lock, file_conflicts=file_conflicts_among(cell.file_conflicts, lock.wheels))
    assert freshness.stale(lock, cell) == ()
    text = lock_file.dumps(lock)
    assert lock_file.loads(text) == lock
    assert 'over = ["full"]' in text
    assert lock_file.inputs_hash(lock) != lock_file.inputs_hash(replace(lock, file_conflicts=()))


@pytest.mark.parametrize(
    ("before", "after"),
    [('"headless"', '"absent"'), ('over = ["full"]', 'over = ["absent"]'), ('"*/site', '"site'), ('"cv2-', '"../')],
)
def test_an_edited_override_is_checked(before: str, after: str) -> None:
    lock = lock_of(
        "full", "headless", file_conflicts=(FileConflict("cv2-headless", "headless", ("full",), RULE.paths, "b"),)
    )
    head, header, tail = lock_file.dumps(lock).partition("[[file-conflict]]")
    assert before in tail
    with pytest.raises(LockError):
        lock_file.loads(head + header + tail.replace(before, after, 1))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("over: [full]", "over: [headless]", "cannot win over itself"),
        ("over: [full]", "over: []", "at least 1"),
        ("over: [full]", "over: [Full]", "normalised package name"),
        ('"*/site', '"site', "must match"),
        ('"*/site', '"*/si\\nte', "must match"),
        ("source: s", "from: s", "unknown key"),
    ],
)
def test_a_faulty_rule_is_refused_with_its_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    complaints = complaint(tmp_path, SMALL, OVERRIDES.replace(before, after))
    assert said in complaints
    assert "1.yaml:" in complaints


def test_an_override_may_apply_to_some_releases_only() -> None:
    wheels = lock_of("full", "headless").wheels
    version = next(wheel.version for wheel in wheels if wheel.name == "headless")
    assert (
        file_conflicts_among([replace(RULE, versions=f"<={version}")], wheels)
        == file_conflicts_among([RULE], wheels)
        != ()
    )
    assert file_conflicts_among([replace(RULE, versions=f">{version}")], wheels) == ()
