"""conda's environment.yml: versions, the equals of its packages, and the part for pip."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from imagegen.core.errors import ProjectFileError
from imagegen.projects import conda
from imagegen.projects.model import MarkerTarget, Recovered
from imagegen.projects.names import conda_names

HERE = Path("elsewhere/environment.yml")  # beside no pyproject.toml
FILE = """\
name: rl
channels: [pytorch, nvidia]
dependencies:
  - python=3.12
  - pytorch::pytorch=2.5.1=py3.12_cuda12.4_cudnn9.1.0_0
  - pytorch-cuda=12.4
  - numpy>=1.26,<2
  - ffmpeg=6
  - libfrobnicate
  - libstdcxx-ng
  - pip:
      - trl==0.20.0
      - -e .
variables: {N: 1}
"""


def recover(text: str) -> Recovered:
    return conda.parse(text, HERE).recover(MarkerTarget("3.12.6"))


def test_packages_with_an_equal_are_recovered_and_others_named() -> None:
    parsed = conda.parse(FILE, HERE)
    found = parsed.recover(MarkerTarget("3.12.6"))
    assert parsed.python == "==3.12.*"
    assert {pin.package: (pin.specifier, pin.places[0].line) for pin in found.pins} == {
        "torch": ("==2.5.1", 5),
        "numpy": (">=1.26,<2", 7),
        "trl": ("==0.20.0", 12),
    }
    assert list(found.debian) == ["ffmpeg"]
    assert found.cuda
    assert found.cuda[0] == "12.4"
    named = sorted((each.place.line, each.is_package) for each in found.omissions)
    assert named == [(8, False), (9, True), (13, True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("=1.26", "==1.26.*"),
        ("==1.26", "==1.26"),
        ("=1.26=py_0", "==1.26"),
        (" 1.17.3 py38*", "==1.17.3"),
        (" =1.26", "==1.26.*"),
        ("1.2.*", "==1.2.*"),
        (">=1.2.*", ">=1.2"),
        (">=1, <2", ">=1,<2"),
        ("*", ""),
    ],
)
def test_versions_are_those_of_conda(text: str, expected: str) -> None:
    assert conda.specifier(text) == expected


VERSION = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}", fullmatch=True)


@given(VERSION, st.sampled_from(["==", ">=", "<=", "!=", "<", ">"]))
def test_a_version_with_an_operator_of_pep_440_stays(version: str, operator: str) -> None:
    assert conda.specifier(f"{operator}{version}") == f"{operator}{version}"


@given(VERSION)
def test_one_equals_sign_admits_what_begins_so(version: str) -> None:
    admitted = SpecifierSet(conda.specifier(f"={version}"))
    assert version in admitted
    assert f"{version}.7" in admitted


@given(st.text(max_size=40) | st.text(st.sampled_from("=<>!~,|*1. ab[]"), max_size=15))
def test_any_version_is_read_or_refused(text: str) -> None:
    with suppress(ValueError):
        SpecifierSet(conda.specifier(text))


@given(st.text(max_size=60) | st.lists(st.text(max_size=12)).map(lambda each: f"dependencies: {each}"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ProjectFileError):
        recover(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: x\n", None),
        ("dependencies: [1\n", 2),
        ("dependencies:\n  - {conda: [a]}\n", 2),
        ("dependencies:\n  - numpy=1|2\n", 2),
        ("dependencies:\n  - numpy\n  - pip:\n      - a ==\n", 4),
        ("dependencies: &a [*a]\n", 1),
    ],
)
def test_malformed_files_are_refused_with_the_line(text: str, line: int | None) -> None:
    with pytest.raises(ProjectFileError) as raised:
        recover(text)
    assert (raised.value.code, raised.value.where.line) == ("project-malformed", line)


def test_each_name_has_one_equal() -> None:
    names = conda_names()
    tables = [set(names.pypi), set(names.debian), set(names.cuda), set(names.base)]
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert all(canonicalize_name(each) == each for each in names.pypi.values())


def test_versions_of_conda_are_read_only_of_packages_that_are_taken(tmp_path: Path) -> None:
    """The lines of `conda env export`: libraries of conda's runtime have versions that PEP 440 lacks."""
    lines = [
        "python=3.11.4=h955ad1f_0",
        "jpeg=9e",
        "tzdata=2025a",
        "openssl=1.1.1w=h7f8727e_0",
        "cuda-cudart=12.4.127=0",
    ]
    lines += ["pytorch=2.6.0=py3.11_cuda12.4_cudnn9.1.0_0", "a-tool=9e", "numpy=1.26.4"]
    text = "dependencies:\n" + "".join(f"  - {line}\n" for line in lines)
    environment = conda.parse(text, tmp_path / "environment.yml")
    recovered = environment.recover(MarkerTarget("3.11"))
    assert environment.python == "==3.11.*"
    assert {pin.package: pin.specifier for pin in recovered.pins} == {"numpy": "==1.26.4.*", "torch": "==2.6.0"}
    assert recovered.cuda is not None and recovered.cuda[0] == "12.4"
    assert [(omission.place.line, omission.is_package) for omission in recovered.omissions] == [(8, True)]
