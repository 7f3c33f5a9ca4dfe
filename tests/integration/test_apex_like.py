"""A stand-in that builds as apex does, from a git mirror to a smoke-tested image, through the command line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagegen.engine import Engine
from tests.support import apex_like
from tests.support.git_server import Bare, GitServer
from tests.support.machines import Place, digest_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]  # torch, nvcc from NVIDIA's wheels, and a minute of compiling

CELL = "kernels-cu130-py311"
MATRIX = """\
components:
  apex-like:
    description: A stand-in for apex.
    imports: [apex_like, {modules}]
    compiled: true
images:
  kernels:
    description: Kernels as apex has them.
    purpose: Tests.
    base: debian12-gpu
    gpus: [sm_90, sm_120]
    stacks: [gpu, cuda-toolkit]
    axes:
      cuda: [cu130]
    components:
      apex-like: {{version: "==0.1", because: Fused kernels.}}
      pip: {{because: The checks ask it.}}
      torch: {{version: "==2.11.0", because: The kernels are compiled against it.}}
"""
RECIPE = """\
recipes:
  apex-like:
    releases:
      "0.1":
        git: {{url: "https://github.com/NVIDIA/apex-like", commit: {commit}, tree: {tree}, ref: main}}
    requires: ["packaging>20.6"]
    build_requires: [setuptools==81.0.0, wheel==0.48.0, packaging==26.3, ninja==1.13.2]
    against: [torch]
{env}    architectures:
      variable: TORCH_CUDA_ARCH_LIST
      separator: ";"
      names: {{"9.0": "9.0", "12.0": "12.0"}}
    modules: [{modules}]
    jobs: MAX_JOBS
    source: its setup.py
"""


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A git mirror with the repository: its address, the commit and the tree."""
    root = tmp_path / "git"
    (root / "NVIDIA").mkdir(parents=True)
    bare = Bare(root / "NVIDIA" / "apex-like")
    tree = bare.tree(apex_like.files())
    found = {"tree": tree, "commit": bare.commit(tree)}
    server = GitServer(root)
    yield {"url": server.url, **found}
    server.close()


@pytest.fixture
def user(engine: Engine, tmp_path: Path, mirror: dict[str, str]) -> Iterator[Place]:
    """A user's project; the images of the cell go at the end."""
    place = Place(tmp_path / "user", os.environ.get("DOCKER_HOST"), env={"IMAGEGEN_GIT_MIRROR": mirror["url"]})
    for folder in ("matrices", "wheels"):
        (place.root / folder).mkdir(parents=True)
    (place.root / "matrices/kernels.yaml").write_text(MATRIX.format(modules=", ".join(apex_like.MODULES)))
    yield place
    for image in engine.client.images.list("imagegen/kernels"):
        engine.client.images.remove(image.id, force=True)


def describe(user: Place, mirror: dict[str, str], env: dict[str, str]) -> None:
    """Write the recipe, with these variables."""
    lines = [f'      {name}: {{value: "{value}", because: It compiles.}}\n' for name, value in env.items()]
    text = RECIPE.format(
        commit=mirror["commit"],
        tree=mirror["tree"],
        env="".join(["    env:\n", *lines] if lines else []),
        modules=", ".join(apex_like.MODULES),
    )
    (user.root / "wheels/apex-like.yaml").write_text(text)


def test_kernels_come_from_a_git_mirror_and_a_python_only_wheel_is_refused(user: Place, mirror: dict[str, str]) -> None:
    describe(user, mirror, {})
    assert "1 of them to be compiled" in user.run("lock", CELL).stderr
    refused = user.run("wheels", "build", "--cell", CELL, code=78)
    assert "lacks the extension modules apex_like_C, apex_like_cuda: nothing was compiled" in refused.stderr

    describe(user, mirror, apex_like.ENV)
    user.run("lock", CELL)
    (wheel,) = json.loads(user.run("wheels", "build", "--cell", CELL, "--json").stdout)
    assert (wheel["record"]["units"], wheel["record"]["architectures"]) == (3, ["9.0", "12.0"])

    # From the wheelhouse, audited, and with its modules imported against a stub of the driver.
    built = user.run("build", CELL)
    assert "imports: pass" in built.stderr
    assert re.search(r"loading: pass.*against a stub libcuda\.so\.1", built.stderr)
    alone = Place(user.root, "unix:///nonexistent.sock", env=user.env)
    assert "all that it wants compiled is there" in alone.run("wheels", "build", "--cell", CELL).stderr
    assert digest_of(alone.run("build", CELL, "--output", "oci:image")) in built.stdout
