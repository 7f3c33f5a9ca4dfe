"""uv's explanations: real uv, asked for what has no answer, and what its hints say about upload times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.core.config import Settings
from imagegen.lock.uv_resolve import ResolveRequest, is_limited_by_cutoff, packages_without_upload_time, resolve
from tests.support.errors import raises
from tests.support.upload_index import TARGET, PackageIndex

AS_OF = "2026-11-20T00:00:00Z"
# (releases: name, version, requirements...; what the cell asks for) -> parts of uv's explanation
CASES: dict[str, tuple[list[tuple[str, ...]], list[str], list[str]]] = {
    "a pin against a pin": (
        [("vllm", "0.11.0", "torch==2.8.0"), ("torch", "2.8.0"), ("torch", "2.9.1")],
        ["vllm==0.11.0", "torch==2.9.1"],
        ["torch==2.8.0", "the cell depends on vllm==0.11.0", "torch==2.9.1"],
    ),
    "a package that is not there": ([("a", "1.0", "gone>=2")], ["a"], ["gone was not found", "the cell depends on a"]),
    "a wheel for another Python": (
        [("a", "1.0|cp312-cp312-manylinux_2_28_x86_64")],
        ["a==1.0"],
        ["a==1.0 has no wheels with a matching Python implementation tag", "`cp312`"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_uvs_explanation_is_passed_on(name: str, tmp_path: Path) -> None:
    releases, requested, parts = CASES[name]
    index = PackageIndex(tmp_path / "shelf")
    for package, version, *requires in releases:
        number, _, tag = version.partition("|")
        index.wheel(package, number, *requires, tag=tag or "py3-none-any")
    sites = Settings.from_environment({"HOME": str(tmp_path), "PATH": os.defpath})
    with raises("lock-unresolvable") as caught:
        resolve(ResolveRequest(tuple(requested), TARGET, AS_OF, {}, {"pypi": index.site}), sites)
    why = " ".join(str(caught.value.why).split())
    assert [part for part in parts if part not in why] == []


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
    assert is_limited_by_cutoff(text) == any(late for _, _, late in hints)
    assert set(packages_without_upload_time(text)) == {name for name, _, late in hints if not late}


# Hypothesis also draws the constants of the code under test, among them the words that are searched for.
@given(st.text().filter(lambda text: "exclude newer time" not in " ".join(text.split())))
def test_any_text_can_be_searched_for_exclusions(text: str) -> None:
    assert not is_limited_by_cutoff(text)
    assert packages_without_upload_time(text) == []


def test_a_release_that_nothing_pins_is_not_the_reason(tmp_path: Path) -> None:
    """The resolver goes back to old releases, which have only sdists, if a requirement excludes all others."""
    index = PackageIndex(tmp_path / "shelf")
    for version in ("2.4.0", "2.9.0"):
        index.wheel("torch", version)
    index.wheel("vllm", "0.6.3", "torch==2.4.0")
    index.wheel("vllm", "0.2.2", "quantile-python", "torch>=2")
    index.sdist("vllm", "0.1.3", {"setup.py": "raise SystemExit"})
    index.sdist("quantile-python", "1.1", {"setup.py": "raise SystemExit"})
    sites = Settings.from_environment({"HOME": str(tmp_path), "PATH": os.defpath})

    def why(*requirements: str) -> str:
        with raises("lock-sdist-metadata") as caught:
            resolve(ResolveRequest(requirements, TARGET, AS_OF, {}, {"pypi": index.site}), sites)
        return " ".join(f"{caught.value.what} {caught.value.why} {caught.value.fix}".split())

    pins, sdist = ("depends on torch==2.4.0", "torch>=2.9"), "`sdist:`"
    for requirements in (("vllm<=0.6.3,!=0.2.2", "torch>=2.9"), ("vllm<=0.6.3", "torch>=2.9")):
        text = why(*requirements)
        assert [part for part in (*pins, sdist, "--no-build") if part in text] == list(pins)
    assert all(sdist in why(*requirements) for requirements in (("quantile-python",), ("vllm==0.1.3", "torch>=2.9")))
