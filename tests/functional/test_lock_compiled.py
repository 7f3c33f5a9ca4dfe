"""Locking a cell with a compiled component: the wheel that is found, the build where none is, and what forbids one."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from imagegen.compat.rule import Rule
from imagegen.core import data
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import BuildError, FetchError, Location, LockError
from imagegen.core.git.submodule import Submodule
from imagegen.core.gpu import Gpu
from imagegen.core.progress import Quiet
from imagegen.lock import contradictions, dumps, fetch_sources, stale
from imagegen.lock.components import Compiled, against, choose_release, environment, require_tools
from imagegen.lock.file import loads
from imagegen.lock.model import LockedBase, LockedDeb, LockedGit
from imagegen.oci.documents import ImageConfig, RemoteImage
from imagegen.spec.foundation import InterpreterFile
from imagegen.spec.model import Component, EnvVar, Requirement
from imagegen.spec.recipe import Architectures, Commit, LocalSource, Patch, Recipe, SdistFile
from imagegen.wheels.catalogue import Catalogue, CatalogueRelease, KnownFile
from imagegen.wheels.offers import Candidate, Offer, WheelSource
from imagegen.wheels.search import uncatalogued
from imagegen.wheels.selector import wheel_of
from tests.support.errors import raises
from tests.support.git_server import SUBMODULE, Bare, GitServer
from tests.support.golden import Golden
from tests.support.lock_samples import wheel
from tests.support.lock_workspace import Workspace

FAST = Component("fast", "fast", "", (), compiled=True)
SHA = "d" * 64
RECIPE = Recipe(
    component="fast",
    releases={version: SdistFile(f"fast-{version}.tar.gz", SHA, 9) for version in ("1.0", "1.2", "1.10", "2.0rc1")},
    requires=("torch", "einops"),
    build_requires=("backend==1.0",),
    against=("torch",),
    patches=(),
    env=(EnvVar("FORCE", "TRUE", "else it guesses"),),
    architectures=Architectures("FAST_ARCHS", ";", {"9.0": "90a", "10.0": "100", "10.3": "100", "12.1": "12.1"}),
    modules=("fast_cuda",),
    jobs="MAX_JOBS",
    threads=None,
    toolkit=">=12.3",
    cost=None,
    source="",
)
NAME = "fast-1.10+cu130-cp311-cp311-linux_x86_64.whl"
ADDRESS = "https://github.com/x/fast/releases/download/v1/fast-1.10%2Bcu130-cp311-cp311-linux_x86_64.whl"
GPUS = {name: Gpu(f"sm_{name}", capability, "", ()) for name, capability in (("90", "9.0"), ("103", "10.3"))}


class Works(Workspace):
    """A Workspace with a toolkit, a compiler, and the component fast."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.index.wheel("torch", "2.13.0")
        self.index.wheel("einops", "0.8")
        self.index.wheel("nvidia-cuda-nvcc", "13.0.88")
        self.index.wheel("backend", "1.0")
        debs = tuple(LockedDeb(name, "1", "amd64", 1, "a" * 64, "debian", f"pool/{name}.deb") for name in TOOLS)
        self.first = replace(self.first, base=replace(self.first.base, debs=(debs[0], *self.first.base.debs, debs[1])))
        nvcc = Requirement(Component("nvcc", "nvidia-cuda-nvcc", "", ()), "", "it compiles", "pypi")
        required = tuple(replace(each, index="pypi") for each in self.cell.requirements)
        axes = {**self.cell.axes, "cuda": "cu130"}
        self.cell = replace(self.cell, axes=axes, gpus=(GPUS["90"],), requirements=(*required, nvcc, ASKS))
        self.recipe(RECIPE)

    def recipe(self, recipe: Recipe, **requested: object) -> None:
        others = [each for each in self.cell.requirements if each.component != FAST]
        mine = replace(ASKS, **requested)  # type: ignore[arg-type]
        self.cell = replace(self.cell, recipes={"fast": recipe}, requirements=(*others, mine))


TOOLS = ("g++", "python3.11-dev")
ASKS = Requirement(FAST, "<2", "it is fast", "pypi")


@pytest.fixture
def works(tmp_path: Path) -> Works:
    return Works(tmp_path)


def test_what_no_wheel_serves_becomes_a_build(works: Works, golden: Golden) -> None:
    lock = works.make()
    (build,) = lock.builds
    assert (build.name, build.version, build.via) == ("fast", "1.10", ())
    golden.check(build.because, build.choice)
    assert (build.source.filename, build.source.sha256, build.source.index) == ("fast-1.10.tar.gz", SHA, "pypi")
    assert build.against == ("nvidia-cuda-nvcc", "torch")
    assert build.env == {"FAST_ARCHS": "90a", "FORCE": "TRUE"}
    assert [each.file.filename for each in build.build_requires] == ["backend-1.0-py3-none-any.whl"]
    names = {each.name: each.via for each in lock.wheels}
    assert names["einops"] == ("fast",), "what the wheel will require is resolved along"
    assert "backend" not in names, "what a build needs is no part of the image"
    ((need, index),) = works.chooser.requested
    assert (need.key, need.source, need.torch, need.cuda) == (build.key, "fast-1.10.tar.gz", "2.13.0", "13.0")
    assert (index, need.version) == ("pypi", "1.10")

    assert loads(dumps(lock)) == lock
    assert (stale(lock, works.cell), contradictions(lock, works.cell)) == ((), ())
    works.chooser.answer = replace(works.chooser.answer, place=WheelSource.WHEELHOUSE, reason="built meanwhile")
    assert works.make(lock) is lock, "a build that is the same stays, whatever this machine has"
    assert stale(replace(lock, inputs={**lock.inputs, "builder": SHA}), works.cell) == ("builder",)

    works.recipe(replace(RECIPE, env=(EnvVar("FORCE", "FALSE", ""),)))
    assert contradictions(lock, works.cell) == ("build fast",)
    works.recipe(RECIPE, specifier="<1.10")
    assert contradictions(lock, works.cell) == ("build fast",)
    assert works.make(lock).builds[0].version == "1.2"
    works.recipe(RECIPE)
    works.cell = replace(works.cell, requirements=works.cell.requirements[:-1], recipes={})
    assert contradictions(lock, works.cell) == ("build fast",)
    assert works.make(lock).builds == ()
    assert "builder" not in works.make(lock).inputs


def test_a_wheel_that_fits_is_locked_with_the_reason(works: Works, golden: Golden) -> None:
    works.chooser.known = ("1.10", "1.11")
    name = "fast-1.11+cu130-cp311-cp311-linux_x86_64.whl"
    address = ADDRESS.replace("1.10", "1.11")
    works.chooser.answer = Candidate(WheelSource.CATALOGUE, name, address, True, "its name says CUDA 13", SHA, 7)
    lock = works.make()
    fast = next(each for each in lock.wheels if each.name == "fast")
    golden.check(fast.choice)
    assert (fast.version, fast.file.url) == ("1.11+cu130", address)
    assert (lock.builds, works.chooser.requested[0][0].key) == ((), None)
    assert loads(dumps(lock)) == lock
    assert (stale(lock, works.cell), contradictions(lock, works.cell)) == ((), ())
    works.chooser.answer = Candidate(WheelSource.SOURCE, "", "", fits=True, reason="no host can be reached")
    assert works.make(lock) is lock
    with raises("lock-no-recipe"):
        works.make(lock, packages=("fast",))
    works.recipe(RECIPE, from_source=True)
    assert contradictions(lock, works.cell) == ("wheel fast",)


@pytest.mark.parametrize(
    ("catalogue", "listed"),
    [
        (Catalogue(files=(KnownFile("fast", "1.10", Offer(NAME, ADDRESS, SHA), ""),)), True),
        (Catalogue(files=(KnownFile("fast", "1.10", Offer(NAME, ADDRESS, "e" * 64), ""),)), False),
        (Catalogue(files=(KnownFile("fast", "1.10", Offer(NAME, ADDRESS.replace("/x/", "/y/"), SHA), ""),)), False),
        (
            Catalogue(
                releases=(CatalogueRelease("fast", "1.10", ADDRESS.replace("cu130", "cu{cuda}0"), (), (), (), ""),)
            ),
            True,
        ),
        (Catalogue(releases=(CatalogueRelease("fast", "1.10", ADDRESS, (), ("12",), (), ""),)), False),
        (Catalogue(), False),
    ],
)
def test_a_direct_download_is_one_that_the_catalogue_lists(works: Works, catalogue: Catalogue, listed: bool) -> None:
    works.chooser.answer = Candidate(WheelSource.CATALOGUE, NAME, ADDRESS, True, "it fits", SHA, 7)
    lock = works.make()
    assert uncatalogued(lock, works.cell, catalogue) == (() if listed else (NAME,))


def test_a_wheel_is_not_kept_on_a_base_that_is_too_old_for_it(works: Works) -> None:
    name = "fast-1.10-cp311-cp311-manylinux_2_36_x86_64.whl"
    works.chooser.answer = Candidate(WheelSource.CATALOGUE, name, f"https://example.org/{name}", True, "fits", SHA, 7)
    lock = works.make()
    assert next(each for each in lock.wheels if each.name == "fast").file.filename == name
    works.chooser.answer = Candidate(WheelSource.SOURCE, "", "", fits=True, reason="no wheel fits")
    works.cell = replace(works.cell, base=replace(works.cell.base, glibc="2.31"))
    assert [each.name for each in works.make(lock).builds] == ["fast"]


@pytest.mark.parametrize(
    ("place", "index", "url", "path"),
    [
        (WheelSource.CATALOGUE, "url", ADDRESS, None),
        (WheelSource.LINKS, "find-links", None, None),
        (WheelSource.INDEX, "pypi", None, ADDRESS.removeprefix("https://github.com/")),
    ],
)
def test_where_a_wheel_comes_from_is_locked(
    place: WheelSource, index: str, url: str | None, path: str | None, golden: Golden
) -> None:
    name = "fast-1.10+cu130-cp311-cp311-linux_x86_64.whl"
    found = wheel_of(compiled(), Candidate(place, name, ADDRESS, True, "it fits", SHA, 7), ("torch",))
    assert (found.file.index, found.file.url, found.file.path) == (index, url, path)
    golden.check(found.because)
    assert (found.version, found.via) == ("1.10+cu130", ("torch",))


def test_what_shall_come_from_source_does(works: Works) -> None:
    works.chooser.known = ("1.11",)
    works.recipe(RECIPE, from_source=True)
    (build,) = works.make().builds
    assert (build.version, works.chooser.requested) == ("1.10", [])


def test_a_wheel_makes_a_build_unnecessary_that_could_not_be(works: Works, golden: Golden) -> None:
    works.cell = replace(works.cell, gpus=(Gpu("sm_75", "7.5", "turing", ()),))
    with raises("source-build-unsupported"):
        works.make()
    obstacle = works.chooser.requested[0][0].obstacle
    assert obstacle
    golden.check(obstacle)
    name = "fast-1.10-cp311-cp311-linux_x86_64.whl"
    works.chooser.answer = Candidate(WheelSource.LINKS, name, "/x", fits=True, reason="it fits", sha256=SHA, size=7)
    assert next(each for each in works.make().wheels if each.name == "fast").file.index == "find-links"


def test_the_release_is_the_newest_that_is_known(works: Works, golden: Golden) -> None:
    def version(specifier: str, kept: str | None = None, *, source: bool = False) -> str:
        requested = replace(ASKS, specifier=specifier, from_source=source)
        return choose_release(requested, RECIPE, ("1.3", "1.11"), kept).version

    assert version("") == "1.11"
    assert version("", source=True) == "1.10"
    assert version("==1.2") == "1.2"
    assert version(">=1", kept="1.2") == version(">=1", kept="1.2+cu130torch2.13") == "1.2"
    assert version(">=1.3", kept="1.2") == "1.11"
    assert version("==2.0rc1") == "2.0rc1"
    with raises("lock-no-recipe") as caught:
        version("==1.3", source=True)
    golden.check(caught.value)


@pytest.mark.parametrize("shipped", [True, False])
def test_a_release_that_a_recipe_lacks_is_added_where_that_works(shipped: bool) -> None:
    """A second recipe of a name has to replace the shipped one openly, and as a whole."""
    file = data.shipped("wheels") / "fast.yaml" if shipped else Path("wheels/fast.yaml")
    requested = replace(ASKS, specifier="==1.3", from_source=True)
    with pytest.raises(LockError) as caught:
        choose_release(requested, replace(RECIPE, where=Location(file, 3, 3)), (), None)
    steps = (
        f"{file}:3:3, with its patches, under `recipes:` in a file below wheels/",
        "`override: true` and that release",
    )
    own = f"fix: add that release to the recipe at {file}:3:3, or ask for another"
    assert [step in str(caught.value) for step in (*steps, own)] == [shipped, shipped, not shipped]


def compiled(**more: object) -> Compiled:
    return Compiled(ASKS, replace(RECIPE, **more).of("1.10"), "1.10")  # type: ignore[arg-type]


def test_names_that_gpus_share_are_reported_once(works: Works) -> None:
    gpus = (GPUS["90"], Gpu("sm_100", "10.0", "", ()), GPUS["103"])
    assert environment(compiled(), replace(works.cell, gpus=gpus))["FAST_ARCHS"] == "90a;100"
    assert environment(compiled(architectures=None), works.cell) == {"FORCE": "TRUE"}


def test_what_it_is_compiled_against_must_be_there(works: Works, golden: Golden) -> None:
    wheels = [wheel("torch")]
    with pytest.raises(BuildError) as caught:
        against(compiled(against=("cutlass",)), works.cell, wheels)
    golden.check(caught.value)
    with pytest.raises(BuildError) as caught:
        against(compiled(against=("fast",)), works.cell, wheels)
    golden.check(caught.value)


BLACKWELL = Rule(
    "cuda-b300", {"gpu": "==10.3"}, {}, {"cuda": "<12.9"}, "CUDA knows 10.3 from 12.9 on.", "NVIDIA", "2026-11-20",
    "warning", "documented", "Use CUDA 12.9.",
)  # fmt: skip
STACK = {"nvidia-cuda-nvcc": "12.8.93", "torch": "2.9.0+cu128"}


@pytest.mark.parametrize(
    ("versions", "debs", "names", "why"),
    [
        (STACK, ("python3.11-dev",), {}, "has no g++"),
        (STACK, ("g++",), {}, "has no python3.11-dev"),
        ({"torch": "2.9.0+cu128"}, TOOLS, {}, "neither its wheels nor its base hold a CUDA toolkit"),
        (STACK | {"nvidia-cuda-nvcc": "12.2.1"}, TOOLS, {}, "it takes a CUDA toolkit >=12.3, and this is 12.2"),
        (STACK | {"torch": "2.9.0+cu126"}, TOOLS, {}, r"toolkit is CUDA 12.8, and torch 2.9.0\+cu126 is built with"),
        (STACK | {"torch": "2.9.0+cpu"}, TOOLS, {}, "is built without CUDA"),
        (STACK | {"torch": "2.11.0"}, TOOLS, {}, "built with CUDA 13.0"),
        (STACK, TOOLS, {"10.3": "10.3", "9.0": "9.0"}, "CUDA knows 10.3 from 12.9 on"),
    ],
)
def test_unsuitable_tools_are_reported_before_a_build(
    versions: Mapping[str, str], debs: tuple[str, ...], names: Mapping[str, str], why: str, works: Works
) -> None:
    each = compiled(architectures=Architectures("A", ";", names or {"10.3": "100", "9.0": "90"}))
    cell = replace(works.cell, gpus=(GPUS["90"], GPUS["103"]))
    base = replace(works.first.base, debs=tuple(deb for deb in works.first.base.debs if deb.name in debs))
    stack = [wheel(name, version) for name, version in versions.items()]
    with pytest.raises(BuildError, match=why) as caught:
        require_tools(each, cell, base, base.debs, stack, [BLACKWELL])
    assert caught.value.fix


def test_a_missing_toolkit_of_cuda_12_is_not_to_be_had_from_wheels(works: Works) -> None:
    for cuda, fix in (("cu128", "a base that has nvcc"), ("cu130", "add nvidia-cuda-nvcc")):
        cell = replace(works.cell, axes={**works.cell.axes, "cuda": cuda})
        with pytest.raises(BuildError) as caught:
            require_tools(compiled(), cell, works.first.base, works.first.debs, [wheel("torch", "2.8.0")], [BLACKWELL])
        assert fix in str(caught.value.fix)


def test_tools_that_will_do_are_not_refused(works: Works) -> None:
    each = compiled(architectures=Architectures("A", ";", {"10.3": "100", "9.0": "90"}))
    cell = replace(works.cell, gpus=(GPUS["90"], GPUS["103"]))
    stack = [wheel(name, version) for name, version in STACK.items()]
    require_tools(each, cell, works.first.base, works.first.debs, stack, [BLACKWELL])
    theirs = [wheel("nvidia-cuda-nvcc", "13.0.88"), wheel("torch", "2.9.0a0+nv25.10")]
    require_tools(each, cell, works.first.base, works.first.debs, theirs, [BLACKWELL])
    alone = compiled(against=(), architectures=each.recipe.architectures)
    require_tools(alone, cell, works.first.base, works.first.debs, stack[:1], [BLACKWELL])
    standalone = replace(works.cell.interpreter, files={"linux/amd64": InterpreterFile("a", SHA)})
    plain = compiled(architectures=None, toolkit="", against=())
    debs = [deb for deb in works.first.debs if deb.name == "g++"]
    require_tools(plain, replace(works.cell, interpreter=standalone), works.first.base, debs, [], [BLACKWELL])
    require_tools(plain, cell, works.first.base, works.first.debs, [], [BLACKWELL])  # C++ alone


def image(name: str, *env: str) -> LockedBase:
    content = RemoteImage("sha256:" + SHA, "sha256:" + SHA, ImageConfig(env, (), (), "", ""), ())
    return LockedBase("cuda", "registry", None, {}, (), image=name, content=content)


@pytest.mark.parametrize(
    ("base", "refused"),
    [
        (image("docker.io/nvidia/cuda:12.8.1-devel-ubuntu24.04"), False),
        (image("docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04"), True),
        (image("nvcr.io/nvidia/pytorch:25.10-py3", "CUDA_VERSION=13.0.2.006"), True),
        (image("nvcr.io/nvidia/pytorch:25.10-py3", "CUDA_VERSION=12.8.1.012"), False),
        (image("docker.io/own/training:7"), False),
    ],
)
def test_a_base_of_a_registry_is_the_toolkit_that_it_states(
    base: LockedBase, refused: bool, works: Works, golden: Golden
) -> None:
    def check() -> None:
        require_tools(compiled(), works.cell, base, base.debs, [wheel("torch", "2.9.0+cu128")], [])

    if refused:
        with pytest.raises(BuildError) as caught:
            check()
        golden.check(caught.value)
    else:
        check()


def test_what_a_build_begins_with_is_brought_into_the_store(works: Works, golden: Golden) -> None:
    works.index.sdist("fast", "1.10", {"setup.py": "x"})
    sdist = works.index.root / "fast" / "fast-1.10.tar.gz"
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    patch = works.root / "arch.patch"
    patch.write_text("--- a\n+++ b\n")
    sha256 = hashlib.sha256(patch.read_bytes()).hexdigest()
    source = SdistFile(sdist.name, digest, sdist.stat().st_size)
    works.recipe(replace(RECIPE, releases={"1.10": source}, patches=(Patch(patch, sha256, "it is wrong"),)))
    lock = works.make()
    (build,) = lock.builds
    fetch_sources(lock.builds, works.cell.recipes, Context(works.store, settings(works), Quiet()))
    digests = [f"sha256:{digest}", f"sha256:{sha256}", build.build_requires[0].file.digest]
    assert all(works.store.has(each) for each in digests)
    gone = replace(build, source=replace(build.source, sha256=SHA), patches=())
    with raises("fetch-files-missing") as caught:
        fetch_sources([gone], works.cell.recipes, Context(works.store, settings(works), Quiet()))
    golden.check(caught.value)
    other = replace(build, patches=(replace(build.patches[0], sha256=SHA),))
    with raises("lock-patch-unknown"):
        fetch_sources([other], works.cell.recipes, Context(works.store, settings(works), Quiet()))


def test_each_component_brings_what_it_requires_itself(works: Works) -> None:
    works.index.wheel("onnx", "1.0")
    other = Component("slow", "slow", "", (), compiled=True)
    recipe = replace(RECIPE, component="slow", requires=("onnx",), build_requires=())
    requirements = (*works.cell.requirements, Requirement(other, "==1.0", "it is slow", "pypi"))
    works.cell = replace(works.cell, recipes={"fast": RECIPE, "slow": recipe}, requirements=requirements)
    lock = works.make()
    assert [(build.name, build.version) for build in lock.builds] == [("fast", "1.10"), ("slow", "1.0")]
    via = {wheel.name: wheel.via for wheel in lock.wheels}
    assert (via["einops"], via["onnx"]) == (("fast",), ("slow",))


def test_a_commit_is_packed_with_its_submodules(works: Works, golden: Golden) -> None:
    server, kernels, bare = GitServer(works.root), Bare(works.root / "kernels.git"), Bare(works.root / "fast.git")
    inside = kernels.tree({"gemm.cu": b"1"})
    pinned = kernels.commit(inside)
    tree = bare.tree({"setup.py": b"1", "third": (SUBMODULE, pinned.encode())})
    below = Submodule("third", f"{server.url}/kernels.git", pinned, inside)
    commit = Commit(f"{server.url}/fast.git", bare.commit(tree), tree, "main", (below,))
    works.env["PATH"] = os.environ["PATH"]
    works.recipe(replace(RECIPE, releases={"1.10": commit}))
    lock = works.make()
    (build,) = lock.builds
    assert build.git == LockedGit("main", commit.url, commit.commit, tree)
    assert [each.path for each in build.submodules] == ["third"]
    assert (build.source.filename, build.source.index) == ("fast-1.10.tar", "git")
    assert loads(dumps(lock)) == lock
    assert contradictions(lock, works.cell) == ()
    works.store.path(build.source.digest).unlink()
    fetch_sources([build], works.cell.recipes, Context(works.store, settings(works), Quiet()))
    with tarfile.open(works.store.path(build.source.digest)) as archive:
        assert "fast-1.10/third/gemm.cu" in archive.getnames()
    server.close()
    works.store.path(build.source.digest).unlink()
    with raises("fetch-files-missing") as caught:
        fetch_sources([build], works.cell.recipes, Context(works.store, settings(works), Quiet()))
    golden.check(caught.value)


def test_a_directory_is_pinned_as_it_was(works: Works) -> None:
    folder = works.root / "fast"
    folder.mkdir()
    (folder / "setup.py").write_text("1")
    works.recipe(replace(RECIPE, releases={"1.10": LocalSource(folder)}))
    lock = works.make()
    (build,) = lock.builds
    assert (build.source.filename, build.source.index) == ("fast-1.10.tar", "local")
    assert str(folder) not in dumps(lock)
    works.store.path(build.source.digest).unlink()
    fetch_sources([build], works.cell.recipes, Context(works.store, settings(works), Quiet()))
    assert works.store.has(build.source.digest)
    assert contradictions(lock, works.cell) == ()
    (folder / "setup.py").write_text("2")
    with raises("lock-source-changed"):
        fetch_sources([build], works.cell.recipes, Context(works.store, settings(works), Quiet()))


def test_a_directory_that_is_not_there_is_reported_with_the_line_that_names_it(works: Works, golden: Golden) -> None:
    source = LocalSource(works.root / "project" / ".." / "fast", Location("wheels/r.yaml", 5, 15))
    works.recipe(replace(RECIPE, releases={"1.10": source}))
    with pytest.raises(FetchError) as caught:
        works.make()
    golden.check(caught.value)


def test_a_compiled_component_without_a_recipe_says_what_to_add(works: Works) -> None:
    works.index.sdist("fast", "1.0", {"setup.py": ""})
    works.cell = replace(works.cell, recipes={})
    with raises("lock-no-recipe"):
        works.make()


def test_an_unknown_compiled_component_is_no_conflict_of_requirements(works: Works, golden: Golden) -> None:
    works.cell = replace(works.cell, recipes={})
    with raises("lock-no-recipe") as caught:
        works.make()
    golden.check(caught.value)


def settings(works: Works) -> Settings:
    return Settings.from_environment(works.env)
