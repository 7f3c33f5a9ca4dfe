"""uv's explanations in the layout of a conflict: real uv, asked what has no answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagegen.core.config import Settings
from imagegen.core.errors import LockError
from imagegen.plan.lock.resolve import Question, resolve
from imagegen.plan.lock.unmet import Excluded, excluded, told, undated
from tests.unit.test_lock_resolve import TARGET, Shelf

AS_OF = "2026-11-20T00:00:00Z"
# (releases: name, version, requirements...; what the cell asks for) -> what is told
CASES: dict[str, tuple[list[tuple[str, ...]], list[str], list[str]]] = {
    "a pin against a pin": (
        [("vllm", "0.11.0", "torch==2.8.0"), ("torch", "2.8.0"), ("torch", "2.9.1")],
        ["vllm==0.11.0", "torch==2.9.1"],
        [
            "error: vllm==0.11.0, torch==2.9.1",
            "  because: every vllm that comes into question requires torch==2.8.0",
            "  source: the index, as uv reads it",
            "  fix: change vllm==0.11.0 or torch==2.9.1",
        ],
    ),
    "an extra that contradicts its own package": (
        [
            ("verl", "0.9.1", 'sglang==0.5.12; extra == "sglang"', "transformers>=5.5.3,!=5.6.0,<5.11"),
            ("sglang", "0.5.12", "transformers==5.6.0"),
            ("transformers", "5.5.4"),
            ("transformers", "5.6.0"),
        ],
        ["verl[sglang]==0.9.1"],
        [
            "error: verl[sglang]==0.9.1",
            "  because: every sglang that comes into question requires transformers==5.6.0",
            "  because: every verl[sglang] that comes into question requires sglang==0.5.12",
            (
                "  because: every verl that comes into question requires "
                "transformers>=5.5.3,<5.6.0 or transformers>5.6.0,<5.11"
            ),
            "  source: the index, as uv reads it",
            "  fix: change verl[sglang]==0.9.1",
        ],
    ),
    "a chain": (
        [
            ("vllm", "0.16.0", "opencv>=4.13"),
            ("opencv", "4.12", "numpy"),
            ("opencv", "4.13.0.90", "numpy>=2"),
            ("opencv", "4.13.0.92", "numpy>=2"),
            ("mcore", "0.15.3", "numpy<2.0.0"),
            ("numpy", "1.26.4"),
            ("numpy", "2.3.0"),
        ],
        ["vllm==0.16.0", "mcore==0.15.3"],
        [
            "error: vllm==0.16.0, mcore==0.15.3",
            "  because: opencv>=4.13.0.90 requires numpy>=2",
            "  because: every mcore that comes into question requires numpy<2.0.0",
            "  because: every vllm that comes into question requires opencv>=4.13",
            "  source: the index, as uv reads it",
            "  fix: change vllm==0.16.0 or mcore==0.15.3",
        ],
    ),
    "a release that is not there": (
        [("a", "1.0", "b>=2"), ("b", "1.0")],
        ["a"],
        [
            "error: a",
            "  because: the index has only b==1.0",
            "  because: every a that comes into question requires b>=2",
            "  source: the index, as uv reads it",
            "  fix: change a",
        ],
    ),
    "a package that is not there": (
        [("a", "1.0", "gone>=2")],
        ["a"],
        [
            "error: a",
            "  because: the index has no package gone",
            "  because: every a that comes into question requires gone>=2",
            "  source: the index, as uv reads it",
            "  fix: change a",
        ],
    ),
    "a conclusion that ends in a list": (
        [("u", "1"), ("u", "2"), ("u", "3"), ("x", "1", "u>=3"), ("x", "2"), ("x", "3", "u<2")],
        ["u==2", "x!=2"],
        [
            "error: u==2, x<2 or x>2",
            "  because: x<=1 requires u>=3",
            "  because: x>=3 requires u<2",
            "  source: the index, as uv reads it",
            "  fix: change u==2 or x<2 or x>2",
        ],
    ),
    "a wheel for another Python": (
        [("a", "1.0|cp312-cp312-manylinux_2_28_x86_64")],
        ["a==1.0"],
        [
            "error: a==1.0",
            "  because: a==1.0 has no wheels with a matching Python implementation tag (e.g., `cp311`)",
            "  source: the index, as uv reads it",
            (
                "  hint: the cell is for CPython 3.11 (`cp311`), but we only found wheels for `a` (v1.0) "
                "with the following Python implementation tag: `cp312`"
            ),
            "  fix: change a==1.0",
        ],
    ),
}


def refused(folder: Path, releases: list[tuple[str, ...]], asked: list[str]) -> str | None:
    """The reason that is told, None where uv finds a resolution."""
    shelf = Shelf(folder / "shelf")
    for name, version, *requires in releases:
        number, _, tag = version.partition("|")
        shelf.wheel(name, number, *requires, tag=tag or "py3-none-any")
    sites = Settings.from_environment({"HOME": str(folder), "PATH": os.defpath})
    try:
        resolve(Question(tuple(asked), TARGET, AS_OF, {}, {"pypi": shelf.site}), sites)
    except LockError as error:
        return error.why
    return None


@pytest.mark.parametrize("name", CASES)
def test_uvs_explanation_is_told_as_a_conflict(name: str, tmp_path: Path) -> None:
    releases, asked, lines = CASES[name]
    why = refused(tmp_path, releases, asked)
    assert why is not None
    assert why.splitlines() == lines


VERSIONS = ("1", "2", "3")
RANGES = ("", "<2", ">1", "==1", "==2", ">=3")


@settings(max_examples=12, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            name: st.fixed_dictionaries(
                dict.fromkeys(
                    VERSIONS, st.lists(st.tuples(st.sampled_from("uvwx"), st.sampled_from(RANGES)), max_size=2)
                )
            )
            for name in "uvwx"
        }
    )
)
def test_every_explanation_of_uv_is_understood(
    tmp_path_factory: pytest.TempPathFactory, world: dict[str, dict[str, list[tuple[str, str]]]]
) -> None:
    releases = [
        (name, version, *(f"{other}{text}" for other, text in requires if other != name))
        for name, versions in world.items()
        for version, requires in versions.items()
    ]
    why = refused(tmp_path_factory.mktemp("world"), releases, ["u==2", "v>1", "w", "x!=2"])
    if why is None:
        return
    first, *lines = why.splitlines()
    assert first.startswith("error: ")
    assert set(first.removeprefix("error: ").split(", ")) <= {"u==2", "v>1", "w", "x<2 or x>2"}
    for line in lines:
        assert line.startswith(("  because: ", "  source: ", "  fix: "))
        assert "conclude" not in line
        assert "we know" not in line


@given(st.text())
def test_any_other_text_is_left_to_others(text: str) -> None:
    assert told(text, "cell") is None


NAMES = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True)
RELEASES = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}(\+cu[0-9]{1,3})?", fullmatch=True)
TIMES = st.datetimes().map(lambda time: f"{time.isoformat()}Z")


@given(st.lists(st.tuples(NAMES, TIMES, st.none() | st.tuples(RELEASES, TIMES, st.booleans())), max_size=3))
def test_what_upload_times_exclude_is_read_from_uvs_hints(
    hints: list[tuple[str, str, tuple[str, str, bool] | None]],
) -> None:
    """In the words of uv 0.13.8; test_lock_upload_times.py has uv itself."""
    text = "cause: Because there are no versions of a and b, we can conclude that it is so.\n"
    for name, cutoff, late in hints:
        text += f"\nhint: `{name}` was filtered by `exclude-newer` to only include packages uploaded before {cutoff}."
        if late:
            version, uploaded, exact = late
            words = f", v{version}, was" if exact else f" satisfying the requirement is v{version},"
            text += f" The {'requested' if exact else 'latest'} version{words} published at {uploaded}."
        text += " Consider using `exclude-newer-package` to override the cutoff for this package.\n"
    assert excluded(text) == [Excluded(name, cutoff, *(late or ("", ""))[:2]) for name, cutoff, late in hints]
    assert set(undated(text)) == {name for name, _, late in hints if not late}


@given(st.text())
def test_any_text_can_be_searched_for_exclusions(text: str) -> None:
    assert excluded(text) == []
    assert undated(text) == []
