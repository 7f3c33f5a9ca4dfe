"""Builds that a local version label tells apart: which exist, their order, and how their data fits other data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagegen.compat import metadata
from imagegen.compat.published_builds import Builds, PublishedBuild
from imagegen.wheels import catalogue
from tests.support.matrix_samples import SHIPPED, SMALL, complaint, load, shipped_matrix

MATRIX = shipped_matrix()
BUILDS = MATRIX.builds


def build(*labels: str, releases: str = "", cuda: str = "12.8") -> PublishedBuild:
    return PublishedBuild("torch-it", "torch", labels, releases, cuda, "an index", "a source", "2026-11-24")


@pytest.mark.parametrize(
    ("package", "release", "label", "missing"),
    [
        ("torch", "2.6.0", "cu128", True),  # cu128 came with 2.7
        ("torch", "2.7.0", "cu128", False),
        ("torch", "2.11.0", "cu125", True),
        ("torch", "2.7.0", "computecanada", False),  # another form: a private build
        ("vllm", "0.31.0", "cu124", True),
        ("vllm", "0.19.1", "cu129", True),  # PyPI's is for CUDA 12.9
        ("vllm", "0.20.0", "cu129", False),
        ("sgl-kernel", "0.3.21", "cu128", True),
        ("sgl-kernel", "0.3.15", "cu128", False),  # no build of 0.3.15 is known
        ("flash-attn", "2.7.4.post1", "cu12torch2.9cxx11abitrue", True),
        ("flash-attn", "2.8.3", "cu128torch2.8", False),
        ("flash-attn", "2.7.3", "cu128.torch27", True),  # open ends: nothing is known of other labels
        ("numpy", "2.0.0", "cu128", False),
    ],
)
def test_a_label_is_missing_where_other_builds_of_the_release_are_known(
    package: str, release: str, label: str, *, missing: bool
) -> None:
    assert BUILDS.is_missing(package, release, label) is missing


def test_labels_are_ordered_by_cuda_and_then_by_their_numbers() -> None:
    assert BUILDS.labels("torch", "2.11.0") == ("cu130", "cu129", "cu128", "cu126", "cpu")
    # For one CUDA, the project's own builds before those of others.
    assert BUILDS.labels("flash-attn", "2.7.4.post1")[:2] == ("cu130torch2.9", "cu12torch2.7cxx11abitrue")
    assert BUILDS.labels("torchaudio") == BUILDS.labels("torchvision") == BUILDS.labels("torch")


def test_a_build_without_a_label_is_pypis() -> None:
    found = BUILDS.build("vllm", "0.20.0", "")
    assert found is not None
    assert (found.cuda, found.labels) == ("13.0", ())
    assert BUILDS.build("vllm", "0.20.0", "cu130") is None


def test_rules_follow_from_the_data() -> None:
    rules = {rule.id: rule for rule in Builds((build("cu128", releases=">=2.7,<2.12"),), ("torchvision",)).rules()}
    assert set(rules) == {"torch-index-cu128", "torch-label-cu128", "torchvision-label-cu128"}
    assert (rules["torch-index-cu128"].when, rules["torch-index-cu128"].then) == (
        {"cuda": "==12.8"},
        {"torch": ">=2.7,<2.12"},
    )
    assert rules["torch-label-cu128"].then == {"cuda": "==12.8"}
    assert rules["torchvision-label-cu128"].then == {"cuda": "==12.*"}  # it loads the libraries of a major version
    without = Builds((build("cpu", cuda="cpu"),)).rules()
    assert [(rule.id, dict(rule.then)) for rule in without] == [("torch-label-cpu", {"cuda": "cpu"})]
    assert Builds((build("cu12torch2.8", cuda="12"),)).rules()[0].id == "torch-index-cu12torch2.8"


@given(st.text("cu0123456789torch.", min_size=1, max_size=12), st.text("cu0123456789torch.", min_size=1, max_size=12))
def test_a_label_of_a_build_is_never_missing_and_one_of_another_form_is_not_either(own: str, other: str) -> None:
    builds = Builds((build(own),))
    assert not builds.is_missing("torch", "2.8.0", own)
    if re.sub("[0-9]+", "#", own) != re.sub("[0-9]+", "#", other):
        assert not builds.is_missing("torch", "2.8.0", other)


def test_a_project_adds_builds_of_its_own(tmp_path: Path) -> None:
    own = "builds:\n  ours: {package: torch, labels: [ours], releases: '==2.13.0', cuda: '13.0', location: l, source: s"
    found = load(tmp_path, SMALL, f'{own}, date: "2026-11-24"}}\n')
    assert found.builds.labels("torch", "2.13.0") == ("ours",)
    assert {rule.id for rule in found.rules} == {"torch-label-ours", "torch-index-ours"}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("package: trch, cuda: '13.0'", 'there is no component "trch"'),
        ("package: torch, cuda: '13'", ""),
        ("package: torch, cuda: cu130", "must be a CUDA release or major version, or cpu"),
        ("package: torch, cuda: '13.0', labels: [+cu130]", "must match"),
        ("package: torch, cuda: '13.0', releases: new", "is not a PEP 440 version specifier"),
    ],
)
def test_a_fault_in_a_build_is_reported(tmp_path: Path, fault: str, said: str) -> None:
    text = f'builds:\n  ours: {{{fault}, location: l, source: s, date: "2026-11-24"}}\n'
    found = complaint(tmp_path, SMALL, text)
    assert (said in found) if said else not found


def test_every_build_is_of_a_release_that_is_known() -> None:
    for each in BUILDS.entries:
        known = metadata.load([SHIPPED], each.package)
        assert known is not None
        assert [version for version in known.releases if each.has(version)], each.name


def test_a_release_has_one_build_per_label() -> None:
    for each in BUILDS.entries:
        known = metadata.load([SHIPPED], each.package)
        versions = [version for version in known.releases if each.has(version)] if known else []
        for label in each.labels or ("",):
            for version in versions:
                of_it = [one for one in BUILDS.of(each.package, version) if label in (one.labels or ("",))]
                assert of_it == [each], (version, label)


def test_the_catalogue_has_wheels_of_builds_that_exist() -> None:
    official = [each for each in catalogue.load([SHIPPED.parent / "wheels"]).releases if each.package == "flash-attn"]
    assert official
    for each in official:
        labels = {f"cu{cuda}torch{torch}cxx11abitrue" for cuda in each.cuda for torch in each.torch}
        assert labels <= set(BUILDS.labels("flash-attn", each.version))


def test_an_index_of_the_matrix_has_builds_of_the_label_that_it_is_named_for() -> None:
    torch = MATRIX.components["torch"]
    assert set(torch.local.values()) <= set(BUILDS.labels("torch"))


def test_what_a_build_is_for_has_one_form() -> None:
    for each in BUILDS.entries:
        assert each.cuda == "cpu" or Version(each.cuda) in SpecifierSet(">=11,<14")
