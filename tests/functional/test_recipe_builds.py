"""The Dockerfile of a lock with source builds, and the folder beside it."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given

from imagegen.core import git
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.errors import LockError, StoreError
from imagegen.core.progress import Quiet
from imagegen.core.store import Store
from imagegen.image import dockerfile, folder, layers
from imagegen.image import dockerfile as recipe
from imagegen.image.layers import support
from imagegen.image.layers.image_config import Image
from imagegen.lock.file import loads, lock_table, render_table
from imagegen.lock.model import LOCAL, LockedFile, LockedPackages, LockedPatch
from imagegen.spec.recipe import LocalSource
from imagegen.wheels.builds import stage
from imagegen.wheels.builds.environment import BuildEnvironment
from imagegen.wheels.throttle import JobPlan
from tests.support.dockerfile_parser import Instruction, instructions
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.source_builds import BUILD, BUILT_WHEEL, RECIPE, WITH_BUILD, packed
from tests.support.store_images import put_image
from tests.support.tiny_lock import HOSTILE, LINE, LOCK, TAG, leaves, wheel, with_leaf


def test_the_text(golden: Callable[[str, str], None]) -> None:
    golden(f"{WITH_BUILD.cell}.Dockerfile", dockerfile.render(WITH_BUILD, TAG).dockerfile)


def test_the_wheel_that_was_built_meanwhile_changes_nothing() -> None:
    """The recipe stands alone: a user without a wheelhouse compiles."""
    there = replace(WITH_BUILD, wheels=tuple(sorted((*WITH_BUILD.wheels, BUILT_WHEEL), key=lambda each: each.name)))
    text = dockerfile.render(WITH_BUILD, TAG).dockerfile
    strip = "dev.imagegen.inputs"  # imagegen.lock sees to that line
    assert [line for line in dockerfile.render(there, TAG).dockerfile.splitlines() if strip not in line][2:] == [
        line for line in text.splitlines() if strip not in line
    ][2:]
    assert [each.name for each in dockerfile.render(there, TAG).wheels] == ["uv", "antlr4-python3-runtime", "torch"]
    assert support.support_files(there) == support.support_files(WITH_BUILD)
    assert f"{BUILD.name}=={BUILD.version}\n" in support.constraints(WITH_BUILD)


def test_the_command_names_the_folder_of_the_builds_where_there_is_one() -> None:
    assert " --build-context builds=./builds " in dockerfile.render(WITH_BUILD, TAG).arguments
    assert "builds" not in dockerfile.render(LOCK, TAG).arguments


def test_the_toolchain_is_what_the_builds_compile_against() -> None:
    below = recipe.toolchain(WITH_BUILD)
    assert [each.name for each in below.wheels] == ["nvidia-cuda-nvcc", "torch"]
    assert below.builds == ()
    assert below.record is None
    # The layers of the image itself serve: nothing is unpacked twice.
    assert support.support_links(below)[support.CUDA_HOME] == support.support_links(WITH_BUILD)[support.CUDA_HOME]
    small = wheel("numpy", "2.4.6", "b" * 64)
    assert layers.plan.layer_key(below, [small]) == layers.plan.layer_key(WITH_BUILD, [small])


@given(choice=LINE)
def test_a_reason_stays_in_its_comment(choice: str) -> None:
    lock = replace(WITH_BUILD, builds=(replace(BUILD, choice=choice),))
    found = [(each.name, each.documents) for each in instructions(dockerfile.render(lock, TAG).dockerfile)]
    assert found[4:-10] == the_instructions()[4:-10]
    assert [name for name, _ in found] == [name for name, _ in the_instructions()]


def the_instructions() -> list[tuple[str, tuple[str, ...]]]:
    return [(each.name, each.documents) for each in instructions(dockerfile.render(WITH_BUILD, TAG).dockerfile)]


def test_two_builds_are_stages_of_their_own(golden: Golden) -> None:
    other = replace(BUILD, name="other-ext", key="sha256:" + "f" * 64)
    text = dockerfile.render(replace(WITH_BUILD, builds=(BUILD, other)), TAG).dockerfile
    stages = [each.value for each in instructions(text) if each.name == "FROM"]
    golden.check(stages)
    caches = [mount_of(each, "cache") for each in instructions(text) if "target=/build" in each.value]
    assert caches == [
        "type=cache,id=imagegen-0123456789ab,target=/build,sharing=locked",
        "type=cache,id=imagegen-ffffffffffff,target=/build,sharing=locked",
    ]
    install = next(each for each in reversed(instructions(text)) if "--find-links" in "".join(each.documents))
    assert "--find-links /mnt/built/demo-ext demo-ext==1.0 \\\n" in install.documents[0]
    assert "--find-links /mnt/built/other-ext other-ext==1.0\n" in install.documents[0]


def mount_of(run: Instruction, kind: str) -> str:
    (found,) = (word for word in run.value.replace("--mount=", "").split() if word.startswith(f"type={kind},"))
    return found


def test_the_folder_of_the_builds(tmp_path: Path) -> None:
    settings = Settings.from_environment({"HOME": str(tmp_path), "PATH": os.defpath})
    store = Store(tmp_path / "store")
    archive = packed({"setup.py": b"one\n"})
    source, needed = store.write(archive), store.write(b"setuptools")
    patch = store.write(b"--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-one\n+two\n")
    build = replace(
        BUILD,
        source=replace(BUILD.source, sha256=source.removeprefix("sha256:")),
        build_requires=(wheel("setuptools", "80.9.0", needed.removeprefix("sha256:")),),
        patches=(LockedPatch("arches.patch", patch.removeprefix("sha256:")),),
    )
    before = os.umask(0o077)
    try:
        folder.write_builds([build], {build.name: RECIPE}, tmp_path / "builds", store, settings)
    finally:
        os.umask(before)
    of_build = tmp_path / "builds" / "demo-ext"
    assert sorted(path.name for path in of_build.iterdir()) == [
        *("demo_ext-1.0.tar.gz", "patched", "setuptools-80.9.0-py3-none-any.whl", "spec.json")
    ]
    assert (of_build / "demo_ext-1.0.tar.gz").read_bytes() == archive
    assert (of_build / "patched" / "setup.py").read_text() == "two\n"
    assert json.loads((of_build / "spec.json").read_text()) == {
        "format": 2,
        "name": "demo-ext",
        "version": "1.0",
        "source": "demo_ext-1.0.tar.gz",
        "build_requires": ["setuptools-80.9.0-py3-none-any.whl"],
        "env": {"TORCH_CUDA_ARCH_LIST": "9.0;12.0"},
        "jobs": "MAX_JOBS",
        "threads": "NVCC_THREADS",
        "modules": ["demo_cuda"],
        "units": 4,
        "epoch": 315532800,
    }
    modes = {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "builds").rglob("*") if path.is_file()}
    assert modes == {"0o444"}


@pytest.mark.fault(
    "Source builds", "a source is absent when the folder is rendered", "nothing is written; it is reported again"
)
@pytest.mark.parametrize("damage", ["a source", "a blob"])
def test_a_folder_that_cannot_be_completed_leaves_nothing(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, settings = Store(tmp_path / "store"), Settings.from_environment({"HOME": str(tmp_path)})
    sources = tmp_path / "my-ext"
    sources.mkdir()
    (sources / "setup.py").touch()
    made = git.pack(sources, "demo-ext-1.0", store)
    source = LockedFile("demo_ext-1.0.tar.gz", made.size, made.digest.removeprefix("sha256:"), LOCAL)
    lock = replace(WITH_BUILD, builds=(replace(BUILD, source=source, build_requires=()),))
    one = store.write(b"a wheel")
    small = replace(WITH_BUILD.uv, file=replace(WITH_BUILD.uv.file, sha256=one.removeprefix("sha256:"), size=7))
    rendered = replace(dockerfile.render(lock, TAG), wheels=(small,))
    base = Image(put_image(store), b"", b"", ())
    monkeypatch.setattr(layers, "assemble_base", lambda *_: base)
    recipes = {BUILD.name: replace(RECIPE, releases={"1.0": LocalSource(sources)})}
    target = tmp_path / "out" / lock.cell

    def write() -> None:
        folder.write(rendered, lock, recipes, target, Context(store, settings, Quiet()))

    if damage == "a source":
        (sources / "setup.py").rename(tmp_path / "setup.py")
        with raises("fetch-no-source"):
            write()
        assert not target.parent.exists()
        (tmp_path / "setup.py").rename(sources / "setup.py")
    else:
        with monkeypatch.context() as patched:  # when most of it has been written
            patched.setattr(folder, "write_builds", lambda *_: store.verify("sha256:" + "0" * 64))
            with pytest.raises(StoreError):
                write()
        assert not target.parent.exists()
    write()
    assert sorted(path.name for path in target.iterdir()) == ["Dockerfile", "base", "builds", "support", "wheels"]
    assert target.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in target.parent.iterdir()] == [target.name]


# All that a value of a build may change in a Dockerfile: comments, names of stages and mounts, pins.
HARMLESS = re.compile(
    r"#.*|FROM (toolchain|scratch) AS buil(d|t)-[a-z0-9-]+|COPY --from=build-[a-z0-9-]+ /out/ /"
    r"|    --mount=type=(bind|cache),[a-z]+=[a-z0-9-]+,[a-z]+=[A-Za-z0-9/-]+(,[a-z]+=[a-z0-9/-]+)? \\"
    r"|    --find-links /mnt/built/[a-z0-9-]+ [a-z0-9-]+==[A-Za-z0-9.!+_-]+"
    r"|[a-z0-9-]+==[A-Za-z0-9.!+_-]+ --hash=sha256:[0-9a-f]{64}"
    r"|LABEL dev\.imagegen\.inputs=\"sha256:[0-9a-f]{64}\""
    r"|    target=/build,sharing=locked|IMAGEGEN|REQUIREMENTS|"
)


@pytest.mark.fault(
    "Source builds",
    "newlines, quotes, $(…), backticks, template and Dockerfile syntax in any field of a lock's build",
    "refused with file and line, or the Dockerfile differs in comments, names and pins alone",
)
@pytest.mark.parametrize(("turn", "path"), list(enumerate(leaves(lock_table(WITH_BUILD)["build"]))), ids=str)
def test_no_field_of_a_build_becomes_an_instruction(turn: int, path: tuple[str | int, ...]) -> None:
    table = lock_table(WITH_BUILD)
    good = functools.reduce(lambda part, key: part[key], path, table["build"])
    usual = set(dockerfile.render(WITH_BUILD, TAG).dockerfile.splitlines())
    for piece in HOSTILE[turn % 5 :: 5]:  # all of them on some field: a lock takes a while to read
        for value in [piece, f"{good}{piece}"] if isinstance(good, str) else [piece]:
            hostile = {**table, "build": with_leaf(table["build"], path, value)}
            try:
                lock = loads("\n".join(render_table(hostile, ())) + "\n", "x.toml")
            except LockError:
                continue
            text = dockerfile.render(lock, TAG).dockerfile
            assert [each.name for each in instructions(text)] == [name for name, _ in the_instructions()]
            assert not [line for line in text.splitlines() if line not in usual and not HARMLESS.fullmatch(line)]


def test_a_build_gives_all_that_buildkit_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a stage that a context replaces, BuildKit asks for what it is made of: here packages above the base.
    added = LockedPackages({"make": "b"}, (), (LOCK.base.debs[0],))
    lock = replace(WITH_BUILD, added=added)
    calls: list[list[str]] = []

    def build(words: list[str], folder: Path, show: object) -> None:
        calls.append(words)

    monkeypatch.setattr(folder, "write_builds", lambda *_: None)
    fake = SimpleNamespace(
        store=Store(tmp_path / "s"), settings=None, layout=lambda _: "oci-layout://x", buildx=build, progress=Quiet()
    )
    own_stage = stage.Stage(lock, {}, cast("Image", None))
    stage.run(
        BUILD, own_stage, cast("JobPlan", SimpleNamespace(jobs=1, threads=1)), tmp_path, cast("BuildEnvironment", fake)
    )
    (words,) = calls
    given = {word.partition("=")[0] for name, word in pairwise(words) if name == "--build-context"}
    assert set(dockerfile.render(lock, TAG).contexts) <= given
