"""The requirements of a cell on a component's wheel, from its lock or from the matrix, and in which version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imagegen import lock
from imagegen import spec as matrix
from imagegen.core.data import shipped
from imagegen.lock.model import LockedBuild, LockedFile
from imagegen.spec.recipe import Commit, LocalSource
from imagegen.wheels import catalogue
from imagegen.wheels.search import need_of, version_of
from tests.support.errors import raises

KEY = "sha256:" + "1" * 64
BUILD = LockedBuild(
    name="flash-attn",
    version="2.8.3",
    because=None,
    via=(),
    choice="",
    source=LockedFile("flash_attn-2.8.3.tar.gz", 1, "2" * 64, "pypi"),
    git=None,
    submodules=(),
    patches=(),
    requires=(),
    build_requires=(),
    against=("torch",),
    env={},
    architectures=("12.0",),
    modules=("flash_attn_2_cuda",),
    key=KEY,
)


@pytest.fixture(scope="module")
def loaded() -> matrix.Matrix:
    return matrix.load([shipped("matrices"), shipped("wheels")])


def test_the_lock_has_the_torch_and_the_builds_key(loaded: matrix.Matrix) -> None:
    (cell,) = loaded.select("blackwell-vllm-cu130-py311-flash-attn")
    component, recipe = loaded.components["flash-attn"], loaded.recipes["flash-attn"]
    bare = need_of(component, "2.8.3", cell, None, recipe)
    assert (bare.torch, bare.cuda, bare.python, bare.key) == ("2.11.0", "13.0", "3.11", None)
    assert (bare.package, bare.version, bare.source, bare.from_source) == (
        "flash-attn",
        "2.8.3",
        "flash_attn-2.8.3.tar.gz",
        False,
    )
    assert bare.platform == "x86_64-manylinux_2_36"
    locked = lock.read(shipped("locks") / "blackwell-vllm-cu130-py311-newest.toml")
    need = need_of(component, "2.8.3", cell, replace(locked, builds=(BUILD,)), recipe)
    assert (need.torch, need.key) == ("2.13.0", KEY)
    assert need_of(component, "2.8.3.post2", cell, replace(locked, builds=(BUILD,)), recipe).key is None
    (other,) = loaded.select("blackwell-vllm-cu130-py311-flash-attn-source")
    assert need_of(component, "2.8.3", other, None, recipe).from_source


def test_every_kind_of_source_has_a_name(loaded: matrix.Matrix) -> None:
    (cell,) = loaded.select("blackwell-vllm")
    component, recipe = loaded.components["flash-attn"], loaded.recipes["flash-attn"]
    commit = Commit("https://example.org/x", "a" * 40, "b" * 40, None, ())
    kinds = {"1": commit, "2": LocalSource(shipped("wheels"))}
    sources = [need_of(component, each, cell, None, replace(recipe, releases=kinds)).source for each in "123"]
    assert sources == ["https://example.org/x at aaaaaaaaaaaa", str(shipped("wheels")), None]


def test_the_version_is_the_newest_known_that_is_asked_for(loaded: matrix.Matrix) -> None:
    component, recipe = loaded.components["flash-attn"], loaded.recipes["flash-attn"]
    known = catalogue.load([shipped("wheels")])
    for specifier, version in (
        ("", "2.8.3.post2"),
        ("<2.8.3.post2", "2.8.3.post1"),  # of which there are wheels alone
        ("==2.8.3", "2.8.3"),
        ("==2.5.0", "2.5.0"),
    ):
        assert version_of(component, specifier, recipe, known) == version
    early = replace(recipe, releases={**recipe.releases, "2.9.0rc1": recipe.releases["2.8.3"]})
    assert version_of(component, "", early, known) == "2.8.3.post2", "which is what a lock takes"
    with raises("lock-no-version") as raised:
        version_of(component, ">=3", recipe, known)
    assert "2.7.4.post1" in str(raised.value)


def test_an_unpinned_torch_needs_a_lock(loaded: matrix.Matrix) -> None:
    (cell,) = loaded.select("blackwell-vllm")
    free = tuple(replace(each, specifier="") if each.component.name == "torch" else each for each in cell.requirements)
    component = loaded.components["flash-attn"]
    with raises("lock-torch-undecided") as raised:
        need_of(component, "2.8.3", replace(cell, requirements=free), None, None)
    assert f"imagegen lock {cell.id}" in str(raised.value.fix)
    without = tuple(each for each in cell.requirements if each.component.name != "torch")
    assert need_of(component, "2.8.3", replace(cell, requirements=without), None, None).torch is None
